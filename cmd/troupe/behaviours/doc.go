// Package behaviours holds tests of the whole server over real sockets, on the simulated device:
// what operators report broken in other servers, each test a sentence that must hold in this one.
// Where a test says so its numbers come from what the server shows everybody: its responses, its
// request log and its /metrics. There is nothing in it but tests.
package behaviours
