// The stream of frames: fetched, since an EventSource could not send the key, and begun again
// whenever it breaks off.

const firstPause = 500, longPause = 10000; // milliseconds
const silence = 8000; // milliseconds: the server sends a frame a second at least

// Stream calls on.frame(frame) for each frame, on.state(state, text) when the connection changes
// ("waiting", "live", "lost"), and on.refused() when the key is missing or wrong.
export class Stream {
  constructor(url, on) {
    this.url = url;
    this.on = on;
    this.key = "";
    this.pause = firstPause;
    this.run = 0; // the number of the latest start: earlier ones fall silent
  }

  start(key) {
    this.stop();
    this.key = key;
    this.follow(++this.run);
  }

  stop() {
    this.run++;
    clearTimeout(this.timer);
    if (this.abort) this.abort.abort();
  }

  async follow(run) {
    const abort = this.abort = new AbortController();
    this.on.state("waiting", "connecting");
    let why = "connection lost";
    this.heard = performance.now();
    const watch = setInterval(() => {
      if (performance.now() - this.heard < silence) return;
      why = `no word for ${silence / 1000} s`;
      abort.abort(why);
    }, 1000);
    try {
      const headers = this.key ? { Authorization: "Bearer " + this.key } : {};
      const response = await fetch(this.url, { headers, signal: abort.signal, cache: "no-store" });
      if (run !== this.run) return;
      if (response.status === 401) {
        this.on.refused();
        return;
      }
      if (!response.ok) {
        const body = await response.json().catch(() => null);
        why = body?.error?.message ?? "the server answered " + response.status;
      } else {
        this.on.state("live", "live");
        why = await this.read(response.body, run) ?? why;
      }
    } catch (e) {
      if (run !== this.run) return;
    } finally {
      clearInterval(watch);
    }
    if (run !== this.run) return;
    this.on.state("lost", why);
    this.timer = setTimeout(() => run === this.run && this.follow(++this.run), this.pause);
    this.pause = Math.min(2 * this.pause, longPause);
  }

  // read reads events to the stream's end. It returns what the server gave as the reason.
  async read(body, run) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let buffer = "", bye = null;
    for (;;) {
      const { value, done } = await reader.read();
      if (run !== this.run) return null;
      this.heard = performance.now();
      if (done) return bye;
      buffer += value;
      for (let end; (end = buffer.indexOf("\n\n")) >= 0; buffer = buffer.slice(end + 2)) {
        if (!buffer.startsWith("data: ")) continue;
        const frame = JSON.parse(buffer.slice(6, end));
        if (frame.bye) bye = frame.bye;
        else this.on.frame(frame);
        this.pause = firstPause;
      }
    }
  }
}
