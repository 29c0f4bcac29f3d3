package console_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/troupe-llm/troupe/transport"
)

// lively is a device on which a crowd's bars have all colours.
func lively(s *setting) {
	s.sim.Fixed = 12 * time.Millisecond
	s.sim.PerPrefillToken = 30 * time.Microsecond
	s.sim.PerDecode = 100 * time.Microsecond
}

func click(selector string) action { return chromedp.Click(chromedp.CSS(selector)) }

const detailOpen = `document.querySelector("#detail").open`

func TestThePageShowsWhatRunsAndWhatHasFinished(t *testing.T) {
	w := newWorld(t, lively)
	b := openTab(t, w.url, 1400, "dark")
	b.until(`document.querySelector("#link").dataset.state === "live" && troupe.draws > 0`)
	b.until(`document.querySelector("#model").textContent === "tiny"`)
	b.fits()

	w.ask("the-long-one", "once upon a time", endless, nil)
	w.crowd(20, 20)
	b.until(`[...document.querySelectorAll("#live .row")].some(r => r.textContent.includes("the-long-one"))`)
	// Its bar has a decode part that grows as tokens come, and the count rises.
	const bar = `[...document.querySelectorAll("#live .row")].find(r => r.textContent.includes("the-long-one"))`
	b.until(bar + `.querySelector('[data-hue="decode"]').to > 0`)
	to := eval[float64](b, bar+`.querySelector('[data-hue="decode"]').to`)
	tokens := eval[string](b, bar+`.children[2].textContent`)
	b.until(fmt.Sprintf(`%s.querySelector('[data-hue="decode"]').to > %v && %s.children[2].textContent !== %s`, bar, to, bar, quote(tokens)))
	b.until(`Number(document.querySelector("#g-tokens").textContent.replace(",", "")) > 0`)
	b.until(`troupe.finished >= 20 && document.querySelectorAll("#past .row").length > 10`)
	b.until(`document.querySelector("#ttft-text").textContent.includes("p99") && document.querySelector("#itl-text").textContent.includes("p99")`)
	b.fits()
	for _, width := range []int{701, 900, 1400} {
		b.run(b.size(width))
		b.until(`innerWidth === ` + strconv.Itoa(width))
		if over := eval[int](b, `Math.ceil(Math.max(...[...document.querySelectorAll(".rows")].flatMap(box => [...box.querySelectorAll(".row > *")].map(e => e.getBoundingClientRect().right - box.getBoundingClientRect().right))))`); over > 0 {
			t.Errorf("at %d pixels rows are %d wider than their list", width, over)
		}
	}

	// A running request's own timeline, which goes on while one looks.
	b.clickUntil("#live .row", detailOpen)
	b.until(`document.querySelector("#detail").open && document.querySelectorAll("#detail .life i").length >= 2`)
	b.until(`document.querySelector("#detail tbody").textContent.includes("Decode")`)
	was := eval[string](b, `document.querySelector("#detail .summary").textContent`)
	b.until(`document.querySelector("#detail .summary").textContent !== ` + quote(was))
	b.run(chromedp.KeyEvent(kb.Escape))
	b.until(`!document.querySelector("#detail").open`)

	// A finished one's.
	b.clickUntil("#past .row", detailOpen)
	b.until(`document.querySelector("#detail").open && document.querySelector("#detail tbody").textContent.includes("Decode") && document.querySelector("#detail tbody").textContent.includes("End")`)
	b.fits()
	b.clickUntil("#detail-close", "!"+detailOpen)
	b.fine()
}

func TestWhatHasFinishedIsFound(t *testing.T) {
	w := newWorld(t, func(s *setting) {
		lively(s)
		s.keys = []transport.Key{{Name: "alice", Secret: "a-key"}, {Name: "bob", Secret: "b-key"}}
	})
	alice, bob := []string{"Authorization", "Bearer a-key"}, []string{"Authorization", "Bearer b-key"}
	w.ask("first-of-alice", "hello", 5, nil, alice...)
	w.ask("slow-of-bob", "hello", 150, nil, bob...)
	w.ask("second-of-bob", "hello", 7, nil, bob...)
	w.ask("wrong-of-bob", "hello", 7, map[string]any{"model": "another"}, bob...)
	w.ask("too-many", "hello", 7, map[string]any{"temperature": -1}, alice...)
	w.ended.Wait()
	// A time between the slow one's and those of the others, however long any of them took.
	var slow, rest int64
	v := w.watch(t, "a-key")
	for _, d := range v.until("all have ended", func(f *frame) bool { return len(f.Past) == 5 }).Past {
		if total := d.Finished - d.Arrival; d.Client == "slow-of-bob" {
			slow = total
		} else {
			rest = max(rest, total)
		}
	}
	v.resp.Body.Close()

	b := openTab(t, w.url, 1400, "light")
	b.until(`document.querySelector("#login").open`)
	if eval[int](b, "troupe.frames") != 0 {
		t.Error("the page was told something without a key")
	}
	for range 3 { // there is nothing behind it
		b.run(chromedp.KeyEvent(kb.Escape))
		b.until(`document.querySelector("#login").open && document.activeElement.id === "key"`)
	}
	b.expect("401") // the browser itself tells of it
	b.run(chromedp.SendKeys(chromedp.CSS("#key"), "no-such-key"+kb.Enter))
	b.until(`document.querySelector("#login").open && document.querySelector("#login-wrong").textContent.includes("not known")`)
	b.run(chromedp.SendKeys(chromedp.CSS("#key"), "a-key"+kb.Enter))
	b.until(`!document.querySelector("#login").open && troupe.finished === 5`)
	if v := eval[string](b, `sessionStorage.getItem("troupe-key") + "|" + localStorage.length + "|" + document.cookie`); v != "a-key|0|" {
		t.Errorf("the key is kept as %q", v)
	}

	type search struct{ text, want string }
	searches := []search{
		{"alice outcome:length", "first-of-alice"},
		{"key:bob outcome:length -slow", "second-of-bob"},
		{"status:404", "wrong-of-bob"},
		{"error:temperature", "too-many"},
		{"outcome:refused key:alice", "too-many"},
		{"id:first", "first-of-alice"},
		{"tokens>100", "slow-of-bob"},
		{`"of-bob" outcome:length tokens=7`, "second-of-bob"},
		{"nothing-has-this", ""},
		// What every object has is no field of a request.
		{"constructor:x", ""}, {"constructor>5", ""}, {"id:wrong -constructor:x", "wrong-of-bob"},
	}
	// Unless the machine was so busy that a short one took as long as the long one.
	if slow > 2*rest {
		searches = append(searches, search{"model:tiny slowest key:bob", "slow-of-bob second-of-bob"},
			search{fmt.Sprintf("total>%d", (slow+rest)/2/1000), "slow-of-bob"})
	}
	const rows = `[...document.querySelectorAll("#past .row")].sort((a, b) => a.at - b.at).map(r => r.firstChild.textContent.replace(/^cmpl-/, "")).join(" ")`
	for _, c := range searches {
		b.search(c.text)
		b.until(rows + " === " + quote(c.want) + ` || document.querySelector("#past").hidden && ` + quote(c.want) + ` === ""`)
	}
	for _, text := range []string{"ttft>much", "ttft>5constructor"} {
		b.search(text)
		b.until(`document.querySelector("#search-wrong").textContent.includes(` + quote(text+": want a time") + `)`)
	}

	// The key is forgotten when asked, and with it what it let one see.
	b.run(click("#forget"))
	b.until(`document.querySelector("#login").open && sessionStorage.length === 0 && document.querySelectorAll("#past .row, #live .row").length === 0`)
	w.until("nobody watches", func() bool { return w.console.Viewers() == 0 })
	b.fine()
}

func TestThePageIsUsableByKeyboardAlone(t *testing.T) {
	w := newWorld(t, lively)
	for _, id := range []string{"one", "two", "three"} {
		w.ask(id, "hello", 5, nil)
		w.ended.Wait()
	}
	b := openTab(t, w.url, 1400, "dark")
	b.until(`troupe.finished === 3`)
	focus := func() string {
		return eval[string](b, `document.activeElement.id || document.activeElement.className || document.activeElement.tagName`)
	}
	var order []string
	for range 6 {
		b.run(chromedp.KeyEvent(kb.Tab))
		order = append(order, focus())
	}
	if got := strings.Join(order, " "); got != "skip pause theme search order past" {
		t.Errorf("the order of focus is %s", got)
	}
	b.run(chromedp.KeyEvent(kb.ArrowDown))
	b.until(`document.querySelector("#past .row[aria-selected=true]").textContent.includes("two")`)
	if !eval[bool](b, `document.getElementById(document.querySelector("#past").getAttribute("aria-activedescendant")).textContent.includes("two")`) {
		t.Error("the chosen row is not the active descendant")
	}
	b.run(chromedp.KeyEvent(kb.End))
	b.until(`document.querySelector("#past .row[aria-selected=true]").textContent.includes("one")`)
	b.run(chromedp.KeyEvent(kb.Enter))
	b.until(`document.querySelector("#detail").open && document.querySelector("#detail-title").textContent.includes("one")`)
	b.until(`document.activeElement.id === "detail-title"`)
	b.run(chromedp.KeyEvent(kb.Escape))
	b.until(`!document.querySelector("#detail").open`)
	b.until(`document.activeElement.id === "past"`)
	b.run(chromedp.KeyEvent("/"))
	b.until(`document.activeElement.id === "search"`)
	b.search("two")
	b.until(`document.querySelectorAll("#past .row").length === 1`)
	b.run(chromedp.KeyEvent(kb.Escape))
	b.until(`document.querySelectorAll("#past .row").length === 3`)
	b.run(chromedp.KeyEvent("p"))
	b.until(`document.querySelector("#pause").getAttribute("aria-pressed") === "true"`)
	if n := eval[int](b, `[...document.querySelectorAll("button, input, select, [role=listbox], canvas:not([aria-hidden])")].filter(e => !e.hidden && !(e.textContent.trim() || e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") || e.labels?.length)).length`); n != 0 {
		t.Errorf("%d controls have no name", n)
	}
	// What changes four times a second is not read out each time.
	if n := eval[int](b, `document.querySelectorAll("main output, .gauges [aria-live], .gauges [role=status], .columns [aria-live]").length`); n != 0 {
		t.Errorf("%d gauges would be read out at each change", n)
	}
	b.fine()
}

func TestTheThemeIsTheSystemsUnlessOneChooses(t *testing.T) {
	w := newWorld(t, lively)
	b := openTab(t, w.url, 1400, "dark")
	b.until(`troupe.draws > 0`)
	const bright = `getComputedStyle(document.body).backgroundColor.match(/\d+/g).reduce((a, v) => a + Number(v), 0) > 380`
	b.until("!(" + bright + ")")
	b.run(b.scheme("light"))
	b.until(bright)
	b.run(click("#theme"))
	b.until("!(" + bright + `) && document.querySelector("#theme").textContent === "Theme: dark"`)
	b.run(chromedp.Reload())
	b.until(`window.troupe?.draws > 0 && !(` + bright + ")")
	b.run(click("#theme"), b.scheme("dark"))
	b.until(bright)
	b.run(click("#theme"))
	b.until("!(" + bright + ")")
	b.fine()
}

func TestWhatClientsWriteStaysText(t *testing.T) {
	const evil = `<img src=x onerror=window.owned=1><script>owned=1</script>`
	w := newWorld(t, func(s *setting) {
		lively(s)
		s.model = `m"'` + evil
		s.keys = []transport.Key{{Name: `k&lt;` + strings.ReplaceAll(evil, " ", "/"), Secret: "s"}}
	})
	key := []string{"Authorization", "Bearer s"}
	w.ask(evil, evil, 30, nil, key...)
	w.ask(evil, "x", 5, map[string]any{"model": evil}, key...)
	w.ask(evil+" runs", "x", endless, nil, key...)
	b := openTab(t, w.url, 390, "dark")
	b.until(`document.querySelector("#login").open`)
	b.run(chromedp.SendKeys(chromedp.CSS("#key"), "s"+kb.Enter))
	b.until(`troupe.finished === 2 && troupe.running === 1`)
	b.fits()
	for i := range 2 {
		b.clickUntil(`#past .row[aria-posinset="`+strconv.Itoa(i+1)+`"]`, detailOpen)
		b.until(`document.querySelector("#detail").open && document.querySelector("#detail").textContent.includes("onerror=window.owned=1")`)
		b.fits()
		b.run(chromedp.KeyEvent(kb.Escape))
		b.until(`!document.querySelector("#detail").open`)
	}
	b.clickUntil("#live .row", detailOpen)
	b.until(`document.querySelector("#detail").open && document.querySelector("#detail").textContent.includes("onerror=window.owned=1")`)
	if eval[bool](b, `"owned" in window || document.querySelectorAll("main img, dialog img, body script").length > 0`) {
		t.Error("what a client wrote became part of the page")
	}
	b.fine()
}

func TestThePageFitsAPhoneAndFollowsFiveHundredRunningRequests(t *testing.T) {
	const n = 500
	w := newWorld(t, func(s *setting) {
		s.sim.Fixed = 40 * time.Millisecond // 25 tokens a second, each
		s.device.MaxSeqs, s.device.MaxTokens = 512, 4096
	})
	b := openTab(t, w.url, 1400, "dark")
	b.until(`troupe.draws > 0`)
	for range n {
		w.ask("", "hello there", endless, nil)
	}
	b.until(`troupe.running === ` + strconv.Itoa(n))
	// Of so many updates nearly each is drawn as it comes: had the page fallen behind, several would
	// have come to one drawing.
	// Where the machine has other things to do, that says nothing of the page: so it may be so a little later.
	type count struct{ Frames, Draws, DrawTime float64 }
	for try := 1; ; try++ {
		before := eval[count](b, `({Frames: troupe.frames, Draws: troupe.draws, DrawTime: troupe.drawTime})`)
		const updates = 24
		b.until(`troupe.frames >= ` + strconv.Itoa(int(before.Frames)+updates))
		after := eval[count](b, `({Frames: troupe.frames, Draws: troupe.draws, DrawTime: troupe.drawTime})`)
		frames, draws := after.Frames-before.Frames, after.Draws-before.Draws
		t.Logf("%d running: %.0f updates, %.0f drawn, %.2f ms of main thread each", n, frames, draws, (after.DrawTime-before.DrawTime)/draws)
		if draws >= frames/2 {
			break
		}
		if try == 8 {
			t.Errorf("of %.0f updates %.0f were drawn, and no more at %d times before", frames, draws, try-1)
			break
		}
	}
	if rows := eval[int](b, `document.querySelectorAll("#live .row").length`); rows > 40 {
		t.Errorf("%d rows are elements, though far fewer are in sight", rows)
	}
	// The last of them can be reached.
	b.clickUntil("#live .row", detailOpen)
	b.until(`document.querySelector("#detail").open`)
	b.run(chromedp.KeyEvent(kb.Escape))
	b.until(`!document.querySelector("#detail").open`)
	b.run(chromedp.KeyEvent(kb.End))
	b.until(`document.querySelector("#live .row[aria-selected=true]").getAttribute("aria-posinset") === "` + strconv.Itoa(n) + `"`)
	for _, width := range []int{1400, 1101, 900, 701, 390, 320} {
		b.run(b.size(width))
		b.until(`innerWidth === ` + strconv.Itoa(width))
		drawn := eval[int](b, "troupe.draws")
		b.until(`troupe.draws > ` + strconv.Itoa(drawn+1))
		b.fits()
		if cut := eval[string](b, `[...document.querySelectorAll(".gauge .sub")].filter(e => e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1).map(e => e.textContent).join("; ")`); cut != "" {
			t.Errorf("at %d pixels these are cut: %s", width, cut)
		}
	}
	b.fine()
}

func TestThePageComesBackByItself(t *testing.T) {
	w := newWorld(t, lively)
	b := openTab(t, w.url, 1400, "dark")
	b.until(`document.querySelector("#link").dataset.state === "live"`)
	w.ask("before", "hello", 5, nil)
	b.until(`troupe.finished === 1`)
	b.expect("ERR_") // the browser itself tells of what it cannot reach
	w.stop()
	b.until(`document.querySelector("#link").dataset.state === "lost" || document.querySelector("#link").dataset.state === "waiting"`)
	b.until(`document.querySelector("#past").textContent.includes("before")`) // what was known stays
	b.fine()
}

// doorTo is a proxy before a world, whose page goes on when another world takes its place.
type doorTo struct {
	mu     sync.Mutex
	target string // host:port
	shut   bool   // nothing passes, and nobody is told
	conns  []net.Conn
}

func newDoor(t *testing.T, w *world) (d *doorTo, url string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d = &doorTo{target: strings.TrimPrefix(w.url, "http://")}
	t.Cleanup(func() { ln.Close(); d.lead(w) })
	go func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			d.mu.Lock()
			out, err := net.Dial("tcp", d.target)
			if err != nil {
				in.Close()
			} else {
				d.conns = append(d.conns, in, out)
				go d.pass(out, in)
				go d.pass(in, out)
			}
			d.mu.Unlock()
		}
	}()
	return d, "http://" + ln.Addr().String()
}

func (d *doorTo) pass(to, from net.Conn) {
	defer to.Close()
	b := make([]byte, 1<<16)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		d.mu.Lock()
		shut := d.shut
		d.mu.Unlock()
		if shut {
			continue // lost
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

func (d *doorTo) set(shut bool) {
	d.mu.Lock()
	d.shut = shut
	d.mu.Unlock()
}

// lead breaks all connections; those after it lead to another world.
func (d *doorTo) lead(w *world) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.conns {
		c.Close()
	}
	d.conns, d.target = nil, strings.TrimPrefix(w.url, "http://")
}

func TestAConnectionThatFallsSilentIsNotTakenForLive(t *testing.T) {
	w := newWorld(t, lively)
	door, url := newDoor(t, w)
	b := openTab(t, url, 1400, "dark")
	const state = `document.querySelector("#link").dataset.state`
	b.until(state + ` === "live" && troupe.draws > 0`)
	b.expect("ERR_") // the browser itself tells of what it cannot reach
	door.set(true)
	// The page's clock goes ahead: to wait takes as long as it takes.
	eval[float64](b, `(performance.now = ((was) => () => was.call(performance) + 60000)(performance.now), performance.now())`)
	b.until(state + ` !== "live" && !document.querySelector("#alarm").hidden`)
	b.until(`document.querySelector("#alarm").textContent.includes("No connection") && document.querySelector("#main").dataset.stale === "true"`)
	door.set(false)
	door.lead(w)
	b.until(state + ` === "live" && document.querySelector("#alarm").hidden && document.querySelector("#main").dataset.stale === "false"`)
	b.fine()
}

func TestAServerStartedAnewIsNotTakenForTheOneBefore(t *testing.T) {
	before, after := newWorld(t, lively), newWorld(t, lively)
	door, url := newDoor(t, before)
	b := openTab(t, url, 1400, "dark")
	b.until(`troupe.draws > 0`)
	before.ask("of-the-one-before", "hello", endless, nil)
	b.until(`troupe.running === 1`)
	b.clickUntil("#live .row", detailOpen)
	b.until(`document.querySelectorAll("#detail .life i").length >= 2`)
	// The other one counts from 1, too.
	after.ask("of-the-one-after", "hello", endless, nil)
	after.until("it runs", func() bool { return after.rt.Admitted() == 1 })
	b.expect("ERR_") // the browser itself tells of what broke off
	door.lead(after)
	b.until(`[...document.querySelectorAll("#live .row")].some(r => r.textContent.includes("of-the-one-after"))`)
	b.until(`document.querySelector("#detail .summary").textContent.includes("not known")`)
	b.until(`document.querySelector("#detail-title").textContent.includes("of-the-one-before") && !document.querySelector("#detail").textContent.includes("of-the-one-after")`)
	was := eval[string](b, `document.querySelector("#detail .summary").textContent`)
	frames := eval[int](b, `troupe.frames`)
	b.until(`troupe.frames > ` + strconv.Itoa(frames+4))
	if now := eval[string](b, `document.querySelector("#detail .summary").textContent`); now != was {
		t.Errorf("a request of which nothing is known goes on: %q, then %q", was, now)
	}
	b.fine()
}

func TestARunningRequestsDetailsLeaveTheReaderAlone(t *testing.T) {
	w := newWorld(t, lively)
	b := openTab(t, w.url, 1400, "dark")
	w.ask("the-long-one", "once upon a time", endless, nil)
	b.until(`troupe.running === 1`)
	b.clickUntil("#live .row", detailOpen)
	b.until(`document.querySelectorAll("#detail tbody tr").length >= 2 && document.querySelector("#detail .facts")`)
	eval[bool](b, `(() => {
		const list = document.querySelector("#detail .scroll"), low = new CSSStyleSheet();
		low.replaceSync("#detail .scroll { max-height: 40px; }");
		document.adoptedStyleSheets = [low];
		list.scrollTop = 15;
		list.focus();
		getSelection().selectAllChildren(document.querySelector("#detail .facts"));
		return true;
	})()`)
	was := eval[string](b, `document.querySelector("#detail .summary").textContent`)
	frames := eval[int](b, `troupe.frames`)
	b.until(`troupe.frames > ` + strconv.Itoa(frames+4) + ` && document.querySelector("#detail .summary").textContent !== ` + quote(was))
	if got := eval[string](b, `[document.querySelector("#detail .scroll").scrollTop, document.activeElement.className, getSelection().toString().includes("the-long-one")].join(" ")`); got != "15 scroll true" {
		t.Errorf("scrolled to, focus, selection: %s", got)
	}
	b.fine()
}

func TestThePageStaysWhereItIsAsRequestsComeAndGo(t *testing.T) {
	for _, width := range []int{1400, 390} {
		t.Run(strconv.Itoa(width), func(t *testing.T) {
			w := newWorld(t, func(s *setting) {
				lively(s)
				s.device.MaxSeqs = 512
			})
			b := openTab(t, w.url, width, "light")
			b.until(`troupe.draws > 2`)
			const below = `document.querySelector("#finished-title").getBoundingClientRect().top + scrollY`
			idle := eval[float64](b, below)
			for _, n := range []int{1, 16, 150} {
				for i := w.rt.Admitted(); i < n; i++ {
					w.ask("", "hello", endless, nil)
				}
				b.until(`troupe.running === ` + strconv.Itoa(n))
				if got := eval[float64](b, below); got != idle {
					t.Errorf("with %d running, what is below is at %v, and was at %v", n, got, idle)
				}
			}
			// The list is filled, and its charts are as large as their places.
			b.until(`!document.querySelector("#field").hidden`)
			b.until(`[...document.querySelectorAll("canvas:not([hidden])")].every(c => Math.abs(c.width / devicePixelRatio - c.clientWidth) < 1.5 && Math.abs(c.height / devicePixelRatio - c.clientHeight) < 1.5)`)
			b.fine()
		})
	}
}

// TestPictures takes the pictures of docs/console.md, where TROUPE_SCREENSHOTS says.
func TestPictures(t *testing.T) {
	if os.Getenv("TROUPE_SCREENSHOTS") == "" {
		t.Skip("TROUPE_SCREENSHOTS names no folder for the pictures")
	}
	w := newWorld(t, func(s *setting) {
		s.sim.Fixed, s.sim.PerPrefillToken, s.sim.PerDecode = 9*time.Millisecond, 80*time.Microsecond, 120*time.Microsecond
		s.device.MaxSeqs, s.device.CacheBytes = 40, 18<<20
		s.model = "SmolLM2-135M-Instruct"
		s.keys = []transport.Key{{Name: "alice", Secret: "a"}, {Name: "batch-jobs", Secret: "b"}, {Name: "web", Secret: "c"}}
	})
	b := openTab(t, w.url, 1400, "dark")
	b.run(chromedp.SendKeys(chromedp.CSS("#key"), "a"+kb.Enter))
	b.until("troupe.draws > 2")
	b.shoot("console-idle")
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 320 {
		tokens := 20 + int(180*r.ExpFloat64())
		header := []string{"Authorization", "Bearer " + string("abcc"[r.IntN(4)])}
		change := map[string]any{"n": 1 + r.IntN(20)/19}
		switch r.IntN(60) {
		case 0:
			change["model"] = "gpt-4"
		case 1:
			change["temperature"] = -1
		}
		w.ask("", strings.Repeat("all work and no play ", 1+int(30*r.ExpFloat64())), min(tokens, 900), change, header...)
		if i%40 == 0 {
			time.Sleep(time.Duration(r.IntN(900)) * time.Millisecond)
		}
		time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
	}
	b.shoot("console-dark")
	b.run(b.scheme("light"))
	time.Sleep(500 * time.Millisecond)
	b.shoot("console-light")
	b.run(b.size(390))
	time.Sleep(700 * time.Millisecond)
	b.shoot("console-phone")
	b.run(b.scheme("dark"), b.size(1400))
	eval[bool](b, `document.querySelector("#order").value = "slowest", document.querySelector("#order").dispatchEvent(new Event("change"))`)
	time.Sleep(1500 * time.Millisecond)
	b.run(click(`#past .row[aria-posinset="2"]`))
	time.Sleep(700 * time.Millisecond)
	b.shoot("console-request")
	b.fine()
}

// search types a text into the empty search field.
func (b *tab) search(text string) {
	b.t.Helper()
	eval[string](b, `document.querySelector("#search").value = ""`)
	b.run(chromedp.SendKeys(chromedp.CSS("#search"), text))
}

func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}
