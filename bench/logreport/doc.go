// Package logreport makes a report of request logs: percentiles by group, attainment of an objective,
// usage and cost by key, what slowed requests, and the slowest ones. It reads millions of lines in
// bounded memory: percentiles come from histograms whose buckets are less than 1 % wide.
package logreport
