package console_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// browser is the one Chromium of all tests; each test has a page of its own in it.
var browser = struct {
	once sync.Once
	ctx  context.Context
	end  func()
	err  error
}{end: func() {}}

func TestMain(m *testing.M) {
	code := m.Run()
	browser.end()
	os.Exit(code)
}

func startBrowser() {
	var path string
	for _, name := range []string{os.Getenv("TROUPE_TEST_BROWSER"), "chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil && name != "" {
			path = found
			break
		}
	}
	if path == "" {
		browser.err = fmt.Errorf("no Chromium: install one (Debian: apt-get install chromium), or name it in TROUPE_TEST_BROWSER")
		return
	}
	allocator, endAllocator := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(path), chromedp.WSURLReadTimeout(patience), chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true), chromedp.Flag("disable-extensions", true), chromedp.Flag("hide-scrollbars", true),
		chromedp.Flag("disable-dev-shm-usage", true))
	ctx, endBrowser := chromedp.NewContext(allocator)
	browser.ctx = ctx
	browser.end = func() { endBrowser(); endAllocator() }
	browser.err = chromedp.Do(ctx)
}

// tab is a page, and what went wrong in it.
type tab struct {
	t   testing.TB
	ctx context.Context

	mu       sync.Mutex
	expected string // part of the complaints that the test brings about
	wrong    []string
}

// openTab opens the console in a new page of the given width and colour scheme.
func openTab(t testing.TB, url string, width int, scheme string) *tab {
	t.Helper()
	if testing.Short() {
		t.Skip("the browser takes its time, and what races is in the server: the tests of the stream have it all")
	}
	browser.once.Do(startBrowser)
	if browser.err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(browser.err)
		}
		t.Skip(browser.err)
	}
	// A context of its own has storage of its own.
	ctx, cancel := chromedp.NewContext(browser.ctx, chromedp.WithNewBrowserContext())
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	limited, cancelTime := context.WithTimeout(ctx, 2*patience)
	b := &tab{t: t, ctx: limited}
	t.Cleanup(func() { cancelTime(); cancel() })
	messages := chromedp.Console(limited)
	go func() {
		for m, err := range messages {
			if err != nil {
				return // the test is over
			}
			text := fmt.Sprintf("%s: %s %s", m.Type, m.Text, m.URL)
			b.mu.Lock()
			if b.expected == "" || !strings.Contains(text, b.expected) {
				b.wrong = append(b.wrong, text)
			}
			b.mu.Unlock()
		}
	}()
	b.run(b.size(width), b.scheme(scheme), chromedp.Navigate(url+"/console"))
	return b
}

type action = chromedp.Action[chromedp.Void]

func (b *tab) size(width int) action {
	height := int64(1000)
	if width < 700 {
		height = 844
	}
	return chromedp.EmulateViewport(int64(width), height)
}

func (b *tab) scheme(name string) action {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}})
		return err
	})
}

func (b *tab) run(actions ...action) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		b.t.Fatalf("%v; the page complained: %q", err, b.complaints())
	}
}

// expect says what the page may complain of from now on.
func (b *tab) expect(part string) {
	b.mu.Lock()
	b.expected = part
	b.mu.Unlock()
}

func (b *tab) complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.wrong...)
}

// eval returns what a JavaScript expression yields.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v; the page complained: %q", expression, err, b.complaints())
	}
	return v
}

// until waits for a JavaScript expression to be true.
func (b *tab) until(expression string) {
	b.t.Helper()
	for end := time.Now().Add(patience); !eval[bool](b, "!!("+expression+")"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("never true: %s; the page complained: %q; it shows: %s", expression, b.complaints(), eval[string](b, "document.body.innerText"))
		}
	}
}

// clickUntil clicks at what moves, as lists do when requests end above them: a click that was aimed where it
// just had been is made anew, until the expression is true.
func (b *tab) clickUntil(selector, expression string) {
	b.t.Helper()
	var err error // that of an element which was gone, too
	for end := time.Now().Add(patience); time.Now().Before(end); {
		err = chromedp.Do(b.ctx, click(selector))
		for soon := time.Now().Add(2 * time.Second); time.Now().Before(soon); time.Sleep(20 * time.Millisecond) {
			if eval[bool](b, "!!("+expression+")") {
				return
			}
		}
	}
	b.t.Fatalf("clicked at %s, and never true: %s; the last click: %v; the page complained: %q", selector, expression, err, b.complaints())
}

// fine checks that nothing went wrong in the page.
func (b *tab) fine() {
	b.t.Helper()
	for _, w := range b.complaints() {
		b.t.Errorf("the page complained: %s", w)
	}
}

// fits checks that nothing is wider than the page.
func (b *tab) fits() {
	b.t.Helper()
	if over := eval[int](b, "document.documentElement.scrollWidth - innerWidth"); over > 0 {
		b.t.Errorf("at %d pixels the page is %d too wide: %s", eval[int](b, "innerWidth"), over,
			eval[string](b, `[...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > innerWidth + 0.5 && !e.closest(".rows, .scroll")).slice(0, 5).map(e => e.tagName + "#" + e.id + "." + e.className).join(" ")`))
	}
}

// shoot saves a picture of the page where TROUPE_SCREENSHOTS says, for people to look at.
func (b *tab) shoot(name string) {
	b.t.Helper()
	dir := os.Getenv("TROUPE_SCREENSHOTS")
	if dir == "" {
		return
	}
	// The whole page in the viewport, as it is drawn then; a dialog in the usual one.
	width, height := eval[int64](b, "innerWidth"), eval[int64](b, "innerHeight")
	tall := eval[int64](b, `document.querySelector("dialog[open]") ? innerHeight : document.documentElement.scrollHeight`)
	b.run(chromedp.EmulateViewport(width, tall))
	time.Sleep(time.Second)
	png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.t.Fatal(err)
	}
	b.run(chromedp.EmulateViewport(width, height))
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}
