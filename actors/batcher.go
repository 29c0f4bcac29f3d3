package actors

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupe-llm/troupe/actors/batch"
	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/lifecycle"
)

const (
	firstBackoff = 50 * time.Millisecond
	longBackoff  = 5 * time.Second
)

// batcher is the actor that owns the device and drives the scheduler: plan, run, commit, one step
// per tick, with submits and cancels taken between steps. It outlives its device, which it reopens;
// when it panics itself, its supervisor replaces it and the requests submit again.
type batcher struct {
	rt     *Runtime
	engine *engine // its own
	log    *slog.Logger
	report func(error) // tells New how the first opening went

	device gpu.Device
	sched  *batch.Scheduler
	in     gpu.Batch
	out    gpu.Result

	ticking bool
	stalled bool // the last plan was empty: nothing to do until someone says something
	submits map[*actor.PID]struct{}
	hunt    hunt

	downAt  int64 // when the device went away; 0 while it is there
	backoff time.Duration
	retry   *time.Timer
	sticky  bool   // the device's last error was a gpu.StickyError, and no device was opened since
	lost    bool   // the device is lost to this process
	why     string // why the device was away when there was no hope for the requests any more
	given   bool   // requests were failed for that, and no device was opened since
}

// tick is the batcher's message to itself: do a step. retry says that it is time to try the device
// again.
type (
	tick  struct{}
	retry struct{}
)

func newBatcher(rt *Runtime, e *engine, report func(error)) *batcher {
	b := &batcher{rt: rt, engine: e, log: rt.cfg.Logger, report: report, submits: map[*actor.PID]struct{}{}}
	if rt.several() {
		b.log = b.log.With(slog.Int("engine", e.num))
	}
	return b
}

// Receive implements actor.Actor.
func (b *batcher) Receive(ctx actor.Context) {
	defer b.noted()
	switch m := ctx.Message().(type) {
	case *actor.Started:
		b.start(ctx)
	case *lifecycle.Submit:
		from := ctx.Sender()
		if _, known := b.submits[from]; !known {
			ctx.Watch(from)
			b.submits[from] = struct{}{} // before the scheduler: should it panic, this request is told
		}
		b.sched.Submit(b.rt.Now(), m, from)
		b.stir(ctx)
	case *lifecycle.Cancel:
		b.sched.Cancel(b.rt.Now(), m.ID, m.Epoch)
		b.stir(ctx)
	case *actor.Terminated:
		delete(b.submits, m.Who)
		b.sched.CancelOwner(b.rt.Now(), m.Who)
		b.stir(ctx)
	case tick:
		b.ticking = false
		b.step(ctx)
		b.next(ctx)
	case retry:
		if b.device == nil {
			b.reopen(ctx, nil)
			b.stir(ctx)
		}
	case giveUp:
		if b.device == nil {
			b.giveUp()
			b.stir(ctx)
		}
	case *actor.Restarting:
		b.engine.board.retire()
		for pid := range b.submits {
			ctx.Send(pid, lost{b.engine.num})
		}
		b.shut()
	case *actor.Stopping:
		b.shut()
		b.engine.board.shut()
	}
}

// noted logs a panic with its stack and lets it go on to the supervisor.
func (b *batcher) noted() {
	if p := recover(); p != nil {
		b.log.Error("the scheduler panicked: the batcher restarts and its requests submit again",
			slog.Int("requests", len(b.submits)), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
		panic(p)
	}
}

// start opens the device: on the batcher's own thread, which the producer is not.
func (b *batcher) start(ctx actor.Context) {
	if info, ok := b.engine.board.device(); ok {
		// A predecessor panicked. What it knew of the device is enough to take requests.
		if err := b.plan(info); err != nil {
			b.log.Error("making a scheduler", slog.Any("error", err))
		}
	}
	again := b.sched != nil
	err := b.open()
	b.report(err)
	switch {
	case !again: // where it failed New has, and nobody waits
	case err != nil:
		b.downAt = b.rt.Now()
		b.notOpened(ctx, err, nil)
	default:
		b.tell(ctx, back{b.engine.num})
	}
}

// plan makes the scheduler for a device.
func (b *batcher) plan(info gpu.Info) (err error) {
	c := &b.rt.cfg
	b.sched, err = batch.New(batch.Config{
		BlockSize: c.BlockSize, NumBlocks: info.NumBlocks, MaxSeqs: c.MaxSeqs, MaxTokens: c.MaxTokens,
		MaxContext: c.MaxContext, PrefixCache: c.PrefixCaching, EOS: c.EOS, Vocab: info.Vocab,
	})
	return err
}

// open opens the device, and with the first one makes the scheduler, since only the device knows
// how many blocks fit.
func (b *batcher) open() (err error) {
	defer recovered(&err, "panic while opening the device")
	d, err := b.rt.cfg.Open(b.engine.num)
	if err != nil {
		return err
	}
	info := d.Info()
	if b.sched == nil {
		if err := b.plan(info); err != nil {
			return errors.Join(err, d.Close())
		}
	}
	b.device, b.downAt, b.backoff, b.stalled, b.sticky, b.given = d, 0, 0, false, false, false
	b.engine.board.up(info)
	return nil
}

// run lets the device compute the planned step; a panic in it is an error like any other.
func (b *batcher) run() (err error) {
	defer recovered(&err, "panic in the device")
	return b.device.Run(&b.in, &b.out)
}

// recovered turns a panic into an error.
func recovered(err *error, what string) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%s: %v\n%s", what, p, debug.Stack())
	}
}

func (b *batcher) shut() {
	if b.retry != nil {
		b.retry.Stop()
	}
	if b.device == nil {
		return
	}
	var err error
	func() {
		defer recovered(&err, "panic while closing the device")
		err = b.device.Close()
	}()
	b.device = nil
	if err != nil {
		b.log.Warn("closing the device", slog.Any("error", err))
	}
}

// stir follows whatever may have given the batcher something to do.
func (b *batcher) stir(ctx actor.Context) {
	b.stalled = false
	if b.lost && b.given {
		b.giveUp()
	}
	b.next(ctx)
}

// next sends what the scheduler has to say and, while there is work, the next tick. The tick goes
// behind what is in the mailbox already, so that submits and cancels take effect between steps.
func (b *batcher) next(ctx actor.Context) {
	b.send(ctx)
	b.engine.board.post(b.sched.Stats())
	if !b.ticking && !b.stalled && b.device != nil && b.sched.Len() > 0 {
		b.ticking = true
		ctx.Send(ctx.Self(), tick{})
	}
}

func (b *batcher) send(ctx actor.Context) {
	for _, e := range b.sched.Events() {
		b.hunt.heard(e.Msg)
		ctx.Send(e.Owner.(*actor.PID), e.Msg)
	}
}

// step plans a step, lets the device run it and commits it.
func (b *batcher) step(ctx actor.Context) {
	if b.device == nil {
		return
	}
	now := b.rt.Now()
	if b.hunt.moved() {
		b.sched.Restrict(now, b.hunt.restriction())
	}
	n := b.sched.Plan(now, &b.in)
	b.send(ctx) // Scheduled and its like leave before the step runs
	if n == 0 {
		// Under a restriction it means that the tested sequences are gone.
		b.stalled = !b.hunt.passed()
		return
	}
	step := &lifecycle.Step{Start: b.rt.Now()}
	b.out.Reset(&b.in)
	err := b.run()
	step.End = b.rt.Now()
	if err != nil {
		b.fault(ctx, err)
		return
	}
	b.sched.Commit(step, &b.out)
	b.engine.board.stepped(step)
}

// fault takes a failed step: every sequence will be computed again, on the device opened anew.
// What was sent to clients stays sent, and what follows is what would have followed.
func (b *batcher) fault(ctx actor.Context, err error) {
	now := b.rt.Now()
	planned := b.sched.Planned(nil)
	b.log.Error("the device failed; it is opened again and its sequences are computed anew",
		slog.Int("sequences", len(planned)), slog.Any("error", err))
	culprit, broken := b.hunt.failed(planned)
	b.sched.Recompute(now, lifecycle.WhyDevice)
	b.shut()
	b.downAt, b.sticky = now, gpu.Sticky(err)
	switch {
	case broken:
		// One sequence after the other seemed to break it: it is not the sequences.
		b.hunt = hunt{}
		b.sched.Restrict(now, nil)
		b.hopeless(ctx, err, planned)
		b.backoff = longBackoff
		b.away(ctx, err, nil)
		return
	case culprit != nil:
		b.sched.Fail(now, *culprit, &lifecycle.Error{Status: 500, Type: "server_error", Code: "device_error",
			Message: "the device failed each time it computed this request: " + firstLine(err)})
	}
	b.reopen(ctx, planned)
}

// reopen tries to open the device. planned are the sequences of the step in which it failed just now.
func (b *batcher) reopen(ctx actor.Context, planned []lifecycle.SeqID) {
	if err := b.open(); err != nil {
		b.notOpened(ctx, err, planned)
		return
	}
	b.log.Info("the device is open again")
	b.tell(ctx, back{b.engine.num})
}

// notOpened follows a failed try: another one later, unless an error stuck to the process before, or now.
func (b *batcher) notOpened(ctx actor.Context, err error, planned []lifecycle.SeqID) {
	if b.sticky || gpu.Sticky(err) {
		b.lose(ctx, err, planned)
		return
	}
	b.away(ctx, err, planned)
}

// lose gives the device up, which only another process can open, and whoever waits for Lost hears of it.
// The requests have no hope here, and neither have those that still come.
func (b *batcher) lose(ctx actor.Context, err error, planned []lifecycle.SeqID) {
	b.lost = true
	b.log.Error("the device is lost to this process, and has no requests any more", slog.Any("error", err))
	b.hopeless(ctx, err, planned)
	b.rt.lose()
}

// tell tells intake of the device, where that matters to other engines. What the requests are to hear of it
// goes before.
func (b *batcher) tell(ctx actor.Context, m any) {
	if b.rt.several() {
		b.send(ctx)
		ctx.Send(b.rt.intake, m)
	}
}

// hopeless says that the device has been away too long, or for good. The requests are failed, unless another engine
// takes them; Health says why.
func (b *batcher) hopeless(ctx actor.Context, err error, planned []lifecycle.SeqID) {
	b.why = firstLine(err)
	b.engine.board.down(b.why)
	if b.rt.several() {
		b.engine.board.gone(b.why)
		b.tell(ctx, away{b.engine.num, planned, none})
		return
	}
	b.giveUp()
}

// giveUp fails all requests.
func (b *batcher) giveUp() {
	b.given = true
	b.sched.FailAll(b.rt.Now(), errNoDevice(b.why))
}

// away waits before the next try, twice as long each time. Beyond the limit there is no hope for the
// requests; the tries go on.
func (b *batcher) away(ctx actor.Context, err error, planned []lifecycle.SeqID) {
	b.engine.board.gone(firstLine(err))
	if b.rt.Now()-b.downAt > int64(b.rt.cfg.ReopenLimit) {
		b.hopeless(ctx, err, planned)
	} else {
		b.tell(ctx, away{b.engine.num, planned, waiting})
	}
	b.backoff = min(max(2*b.backoff, firstBackoff), longBackoff)
	b.log.Warn("the device can't be opened", slog.Any("error", err), slog.Duration("next_try_in", b.backoff))
	if b.retry != nil {
		b.retry.Stop()
	}
	self, root := ctx.Self(), b.rt.system.Root
	b.retry = time.AfterFunc(b.backoff, func() { root.Send(self, retry{}) })
}

func errNoDevice(why string) *lifecycle.Error {
	return &lifecycle.Error{Status: 503, Type: "service_unavailable_error", Code: "no_device",
		Message: "the server has no working device (" + why + "): retry later"}
}

// firstLine is an error's text without the stack that a panic brings.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
