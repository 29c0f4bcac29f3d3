package console

import (
	"testing"
	"time"

	"github.com/troupe-llm/troupe/lifecycle"
)

// told and none are what an inquiry is given to call.
type (
	told = func(int64, *lifecycle.Timeline)
	none = func()
)

func TestATimelineThatNobodyAnswersForIsGivenUp(t *testing.T) {
	body, e := New(Options{}).inquire(7, time.Millisecond, func(uint64, told, none) {})
	if body != nil || e == nil || e.Status != 503 || e.Code != "no_answer" {
		t.Errorf("%s, %+v", body, e)
	}
}

func TestARequestThatBeginsBetweenTwoQuestionsAnswersTheSecond(t *testing.T) {
	asked := 0
	body, e := New(Options{}).inquire(7, time.Hour, func(_ uint64, yes told, _ none) {
		if asked++; asked == 2 {
			yes(5, nil)
			yes(5, nil) // that too many answers come must not block the request
		}
	})
	if string(body) != `{"running":true,"timeline":null}` || e != nil {
		t.Errorf("%s, %+v", body, e)
	}
}

func TestARequestThatEndsWhileItIsAskedForIsFoundAmongTheFinished(t *testing.T) {
	for _, denied := range []bool{true, false} {
		c := New(Options{})
		body, e := c.inquire(7, time.Hour, func(_ uint64, _ told, no none) {
			c.Observe(&lifecycle.Record{Request: &lifecycle.Request{ID: 7}})
			if denied {
				no()
			}
		})
		if string(body) != `{"running":false,"timeline":null}` || e != nil {
			t.Errorf("denied %v: %s, %+v", denied, body, e)
		}
	}
}
