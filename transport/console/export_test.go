package console

import "time"

// Hurry makes frames come every 25 ms, for tests that wait for many of them. Call it before Watch.
func (c *Console) Hurry() { c.interval, c.settle = 25*time.Millisecond, 5*time.Millisecond }

// FillInquiries takes all places of those who wait for a timeline, until the function is called.
func (c *Console) FillInquiries() (leave func()) {
	for range MaxInquiries {
		c.asking <- struct{}{}
	}
	return func() {
		for range MaxInquiries {
			<-c.asking
		}
	}
}
