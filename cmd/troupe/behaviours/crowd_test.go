package behaviours

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"
)

// crowdRole is the environment variable that makes this test binary a crowd of clients in a process of
// its own, so that what they cost is not taken for the server's. Its value is a crowdTask.
const crowdRole = "TROUPE_BEHAVIOURS_CROWD"

// crowdPrompt is what each of them says.
const crowdPrompt = "one of a crowd"

// crowdTask says what a crowd does: so many streams at once, of so many tokens each.
type crowdTask struct {
	Addr            string
	Streams, Tokens int
}

// crowdReport is what it has seen. Times are nanoseconds.
type crowdReport struct {
	Failed []string // why, of each stream that was not whole
	Frames int      // with content, in all
	// What follows counts from the moment that all streams have begun and the test has said so.
	Gaps    int   // between frames with content
	GapP50  int64 // over all gaps of all streams
	GapP99  int64
	GapMax  int64
	MeanP50 int64 // over the streams' mean gaps
	MeanMax int64
}

// crowd is the process: it says "begun" when each stream has its first content, goes on when it is
// told a line, and reports at the end.
func crowd(role string) int {
	var task crowdTask
	if err := json.Unmarshal([]byte(role), &task); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	streams := make([]crowdStream, task.Streams)
	body := say(crowdPrompt, task.Tokens).with(streamed, fields{"temperature": 0.7})
	var begun, ended sync.WaitGroup
	door := make(chan struct{}, 64) // so many dial at a time
	for i := range streams {
		s := &streams[i]
		begun.Add(1)
		ended.Go(func() {
			s.at = make([]int64, 0, task.Tokens)
			first := sync.OnceFunc(begun.Done)
			defer first()
			s.err = s.run(task, body, door, first)
		})
	}
	begun.Wait()
	fmt.Println("begun")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	from := time.Now().UnixNano()
	ended.Wait()

	var r crowdReport
	var gaps, means []int64
	for i := range streams {
		s := &streams[i]
		if s.err != nil {
			r.Failed = append(r.Failed, s.err.Error())
		}
		r.Frames += len(s.at)
		i, _ := slices.BinarySearchFunc(s.at, from, cmp.Compare[int64])
		after := s.at[i:]
		if len(after) < 2 {
			continue
		}
		for j := 1; j < len(after); j++ {
			gaps = append(gaps, after[j]-after[j-1])
		}
		means = append(means, (after[len(after)-1]-after[0])/int64(len(after)-1))
	}
	slices.Sort(gaps)
	slices.Sort(means)
	r.Gaps = len(gaps)
	r.GapP50, r.GapP99, r.GapMax = at(gaps, 0.5), at(gaps, 0.99), at(gaps, 1)
	r.MeanP50, r.MeanMax = at(means, 0.5), at(means, 1)
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		return 1
	}
	return 0
}

// at is the value at a share of a sorted list; 0 of an empty one.
func at(sorted []int64, share float64) int64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}

// crowdStream is one client: lean, since there are many on the machine.
type crowdStream struct {
	at  []int64 // when each frame with content was read
	err error
}

func (s *crowdStream) run(task crowdTask, body string, door chan struct{}, begun func()) error {
	door <- struct{}{}
	c, err := net.Dial("tcp", task.Addr)
	if err == nil {
		err = post(c, chatPath, body, "Connection: close")
	}
	<-door
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * patience))
	r := bufio.NewReaderSize(c, 2<<10)
	status, err := r.ReadSlice('\n')
	if err != nil || !bytes.HasPrefix(status, []byte("HTTP/1.1 200 ")) {
		return fmt.Errorf("%q, %w", status, err)
	}
	finished, done := false, false
	for {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("after %d tokens: %w", len(s.at), err)
		}
		data, ok := bytes.CutPrefix(line, []byte("data: "))
		switch {
		case !ok: // the head, or how the body is framed
		case bytes.Contains(data, []byte(`"delta":{"content":"`)):
			s.at = append(s.at, time.Now().UnixNano())
			if len(s.at) == 1 {
				begun()
			}
			finished = bytes.Contains(data, []byte(`"finish_reason":"length"`))
		case bytes.Equal(data, []byte("[DONE]\n")):
			done = true
		case bytes.HasPrefix(data, []byte(`{"error"`)):
			return fmt.Errorf("after %d tokens: %s", len(s.at), data)
		}
	}
	if len(s.at) != task.Tokens || !finished || !done {
		return fmt.Errorf("%d of %d tokens, finished %v, done %v", len(s.at), task.Tokens, finished, done)
	}
	return nil
}

// clients is a running crowd.
type clients struct {
	t    testing.TB
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	errs lockedBuffer
}

// gather starts a crowd.
func gather(t testing.TB, task crowdTask) *clients {
	t.Helper()
	role, err := json.Marshal(task)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &clients{t: t, cmd: exec.Command(exe)}
	c.cmd.Env = append(os.Environ(), crowdRole+"="+string(role))
	c.cmd.Stderr = &c.errs
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.cmd.Process.Kill() })
	return c
}

// begun waits until each of its streams has its first content, or has failed.
func (c *clients) begun() {
	c.t.Helper()
	if line, err := c.out.ReadString('\n'); err != nil || line != "begun\n" {
		c.t.Fatalf("the crowd says %q, %v: %s", line, err, c.errs.String())
	}
}

// release begins the measured part and returns what the crowd reports at its end.
func (c *clients) release() (r crowdReport) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, "go\n"); err != nil {
		c.t.Fatal(err)
	}
	if err := json.NewDecoder(c.out).Decode(&r); err != nil {
		c.t.Fatalf("the crowd reports nothing: %v: %s", err, c.errs.String())
	}
	if err := c.cmd.Wait(); err != nil {
		c.t.Fatalf("the crowd: %v: %s", err, c.errs.String())
	}
	return r
}
