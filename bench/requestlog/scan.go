package requestlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// Scan reads one line into e, of which nothing is left from before. Keys that it does not know are
// passed over. An error says what is wrong, and where in the line; e is then of no use. Values that no
// server can have meant, such as a time below 0 or of a thousand years, are errors too: a report must
// not add them up.
//
// It is written by hand because a log has millions of lines: it walks over the bytes once, eight at a
// time where it can, expects the keys in the order in which they are written, and any other where they
// are not, makes no copies and does not look into what only few readers want. What it takes is JSON but
// for what lies in Params, Timeline and Metrics.Speculative: of these it only finds the end.
func Scan(line []byte, e *Entry) error {
	s := scanner{b: line, text: e.text[:0]}
	*e = blank
	e.Raw, e.text = line, s.text
	s.space()
	if s.i == len(line) || line[s.i] != '{' {
		return errors.New("not a JSON object")
	}
	for k := s.first(lineKeys); k != over; k = s.next(lineKeys, k) {
		s.field(e, k)
	}
	s.space()
	if s.err == nil && s.i < len(s.b) {
		s.fail("something follows the object")
	}
	e.text = s.text
	return s.err
}

// blank is what a line without keys is.
var blank = Entry{StopToken: -1, Engine: -1, Deadline: Null,
	At:      At{Null, Null, Null, Null, Null, Null},
	Metrics: Metrics{TimeToFirstToken: Null, GenerationTime: Null, QueueTime: Null, MeanITL: Null, TokensPerSecond: math.NaN()},
	Detail: Detail{ArrivalToFirstToken: Null, EndToEnd: Null, Prefill: Null, Preempted: Null, MeanBatch: math.NaN(),
		ITLP50: Null, ITLP90: Null, ITLP99: Null, ITLMax: Null}}

// scanner walks over one JSON value. After an error it stays where it is and yields nothing more.
type scanner struct {
	b     []byte
	i     int
	depth int
	text  []byte
	at    string // the key at hand, perhaps with what quoteAll puts around it
	err   error
}

func (s *scanner) fail(what string) {
	if s.err == nil {
		if s.at != "" {
			what = strconv.Quote(bare(s.at)) + ": " + what
		}
		s.err = fmt.Errorf("%s, at byte %d", what, s.i+1)
	}
	s.i = len(s.b)
}

func (s *scanner) space() {
	for s.i < len(s.b) && (s.b[s.i] == ' ' || s.b[s.i] == '\t' || s.b[s.i] == '\n' || s.b[s.i] == '\r') {
		s.i++
	}
}

// peek is the next byte, 0 at the end.
func (s *scanner) peek() byte {
	if s.i < len(s.b) && s.b[s.i] > ' ' {
		return s.b[s.i]
	}
	s.space()
	if s.i == len(s.b) {
		return 0
	}
	return s.b[s.i]
}

// open enters an object or an array and says whether it holds anything. What is null counts as
// empty.
func (s *scanner) open(brace byte) bool {
	if s.null() {
		return false
	}
	if s.peek() != brace {
		s.fail("want " + string(rune(brace)) + ", or null")
		return false
	}
	if s.depth++; s.depth > 1000 {
		s.fail("nested too deeply")
		return false
	}
	s.i++
	if s.peek() == brace+2 { // ASCII: {} and []
		s.i++
		s.depth--
		return false
	}
	return s.err == nil
}

// more says whether the object or array goes on behind a value.
func (s *scanner) more(brace byte) bool {
	switch s.peek() {
	case ',':
		s.i++
		return true
	case brace:
		s.i++
		s.depth--
		return false
	case 0:
		s.fail("cut short")
	default:
		s.fail("want , or " + string(rune(brace)))
	}
	return false
}

// key reads a key and the colon.
func (s *scanner) key() string {
	if s.peek() != '"' {
		s.fail("want a key in quotes")
		return ""
	}
	k := s.str()
	s.at = k
	if s.peek() != ':' {
		s.fail("want : behind the key")
		return ""
	}
	s.i++
	return k
}

// null passes over null, and says whether it was there.
func (s *scanner) null() bool {
	if s.peek() != 'n' {
		return false
	}
	if !s.literal("null") {
		s.fail("want a value")
	}
	return true
}

// str reads a string, or null as the empty one.
func (s *scanner) str() string {
	if s.null() {
		return ""
	}
	if s.peek() != '"' {
		s.fail("want a string")
		return ""
	}
	b, from := s.b, s.i+1
	i := unplain(b, from)
	switch {
	case i == len(b):
		s.fail("cut short")
		return ""
	case b[i] == '"':
		s.i = i + 1
		return alias(b[from:i])
	}
	return s.escaped(from, i)
}

// unplain is where in b, from i on, a string ends or needs a closer look: at the first byte that is not a
// character as it stands. len(b): nowhere.
func unplain(b []byte, i int) int {
	for ; i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		quote, slash := w^each*'"', w^each*'\\'
		// The top bit of each byte that is 0, or that is below a space: what borrows spoil lies behind
		// the first such byte.
		found := (quote - each) &^ quote
		found |= (slash - each) &^ slash
		found |= (w - each*' ') &^ w
		if found = (found | w) & (each * 0x80); found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
	}
	for i < len(b) && plain[b[i]] {
		i++
	}
	return i
}

// each times a byte is eight of them.
const each = 0x0101010101010101

// plain says which bytes of a string are a character as they stand.
var plain = func() (t [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// alias is b as a string, without a copy.
func alias(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	return unsafe.String(&b[0], len(b))
}

// escaped reads the rest of a string that begins at from and needs a closer look from i on. What is
// not UTF-8 becomes U+FFFD, as with encoding/json.
func (s *scanner) escaped(from, i int) string {
	// A new piece of memory when the old one is full: strings lie in that. It lasts for all that the line can
	// still hold, so that there is at most one new piece a line.
	if cap(s.text)-len(s.text) < (len(s.b)-from)*3 {
		s.text = make([]byte, 0, len(s.b)*3)
	}
	start := len(s.text)
	s.text = append(s.text, s.b[from:i]...)
	for i < len(s.b) {
		c := s.b[i]
		s.i = i
		switch {
		case c == '"':
			s.i++
			return alias(s.text[start:])
		case c < ' ':
			s.fail("a control character in a string")
			return ""
		case c >= utf8.RuneSelf:
			r, n := utf8.DecodeRune(s.b[i:])
			s.text = utf8.AppendRune(s.text, r)
			i += n
		case c != '\\':
			s.text = append(s.text, c)
			i++
		default:
			r, n := s.escape(i)
			if n == 0 {
				s.fail("a bad escape in a string")
				return ""
			}
			s.text = utf8.AppendRune(s.text, r)
			i += n
		}
	}
	s.fail("cut short")
	return ""
}

// escape decodes the escape at i and returns how many bytes it has, 0 when it is none.
func (s *scanner) escape(i int) (r rune, n int) {
	if i+1 >= len(s.b) {
		return 0, 0
	}
	switch c := s.b[i+1]; c {
	case '"', '\\', '/':
		return rune(c), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
		r = s.hex(i + 2)
		if r < 0 {
			return 0, 0
		}
		if utf16.IsSurrogate(r) {
			if i+7 < len(s.b) && s.b[i+6] == '\\' && s.b[i+7] == 'u' {
				if both := utf16.DecodeRune(r, s.hex(i+8)); both != utf8.RuneError {
					return both, 12
				}
			}
			return utf8.RuneError, 6
		}
		return r, 6
	}
	return 0, 0
}

// hex reads four hexadecimal digits; −1 when they are not.
func (s *scanner) hex(i int) rune {
	if i+4 > len(s.b) {
		return -1
	}
	r := rune(0)
	for _, c := range s.b[i : i+4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

// digits passes over decimal digits and says whether there were any.
func (s *scanner) digits() bool {
	from := s.i
	for s.i < len(s.b) && s.b[s.i]-'0' <= 9 {
		s.i++
	}
	return s.i > from
}

// number passes over a number and returns its text.
func (s *scanner) number() []byte {
	c := s.peek()
	if c != '-' && c-'0' > 9 {
		s.fail("want a number")
		return nil
	}
	from := s.i
	if c == '-' {
		s.i++
	}
	ok := true
	if s.i < len(s.b) && s.b[s.i] == '0' {
		s.i++ // no digits behind a leading 0
	} else {
		ok = s.digits()
	}
	if ok && s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		ok = s.digits()
	}
	if ok && s.i < len(s.b) && s.b[s.i]|0x20 == 'e' {
		s.i++
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		ok = s.digits()
	}
	if !ok {
		s.fail("a bad number")
		return nil
	}
	return s.b[from:s.i]
}

// What a value may be at most: generously more than any request has, and little enough for the sums
// of a hundred million lines.
const (
	maxSpan  = Span(3660 * 24 * 3600 * 1e9) // ns: ten years, the most that a server's flags allow
	maxCount = 1e10                         // of tokens and steps
	maxBytes = 1e15
	maxRate  = 1e20 // tokens/s: of maxCount in a nanosecond, and more
)

// moment reads a time as the log has it, or null as the empty one: RFC 3339 in UTC.
func (s *scanner) moment() string {
	t := s.str()
	if t != "" && !IsTime(t) && s.err == nil {
		s.fail("want a time such as 2026-11-30T12:00:00Z")
		return ""
	}
	return t
}

// IsTime says whether t is a time as lines have it, such as 2026-11-30T12:00:00.123Z. The length of the
// month is not looked at.
func IsTime(t string) bool {
	const like = "0000-00-00T00:00:00"
	if len(t) <= len(like) || len(t) > len(like)+len(".123456789Z") || t[len(t)-1] != 'Z' {
		return false
	}
	for i := range len(like) {
		if c := t[i]; c != like[i] && (like[i] != '0' || c-'0' > 9) {
			return false
		}
	}
	if fraction := t[len(like) : len(t)-1]; fraction != "" {
		if fraction[0] != '.' || len(fraction) < 2 {
			return false
		}
		for i := 1; i < len(fraction); i++ {
			if fraction[i]-'0' > 9 {
				return false
			}
		}
	}
	month, day, hour, minute, second := t[5:7], t[8:10], t[11:13], t[14:16], t[17:19]
	return month >= "01" && month <= "12" && day >= "01" && day <= "31" && hour <= "23" && minute <= "59" && second <= "60"
}

// span reads milliseconds; what is below a nanosecond is rounded.
func (s *scanner) span() Span {
	v := s.nanoseconds()
	if v > maxSpan {
		s.fail("a time of more than ten years")
		return Null
	}
	return v
}

func (s *scanner) nanoseconds() Span {
	if v, digits := s.eight(s.i); digits-1 < 7 && (digits == 1 || s.b[s.i] != '0') {
		i := s.i + int(digits)
		if s.b[i] == '.' {
			fraction, digits := s.eight(i + 1)
			if digits-1 >= 6 {
				return s.anyNanoseconds()
			}
			v = v*1e6 + fraction*tens[6-digits]
			i += 1 + int(digits)
		} else {
			v *= 1e6
		}
		if closes(s.b[i]) {
			s.i = i
			return Span(v)
		}
	}
	return s.anyNanoseconds()
}

// eight reads the decimal digits at i, at most eight of them, and says how many there are; none near
// the line's end, where there may be some. Below eight, there is a byte behind them.
func (s *scanner) eight(i int) (v uint64, digits uint) {
	if i+8 > len(s.b) {
		return 0, 0
	}
	v = binary.LittleEndian.Uint64(s.b[i:]) ^ each*'0'
	// The top bit of each byte that is above 9: what carries spoil lies behind the first such byte.
	digits = uint(bits.TrailingZeros64((v+each*(0x7f-9)|v)&(each*0x80))) / 8
	if digits == 0 {
		return 0, 0
	}
	// Leading zeros make them eight; then pairs, fours and all are added up side by side.
	v <<= 64 - 8*digits
	v = v*10 + v>>8
	const low = 0x000000ff000000ff
	return ((v&low)*(100+1000000<<32) + (v>>16&low)*(1+10000<<32)) >> 32, digits
}

var tens = [...]uint64{1, 10, 100, 1000, 10_000, 100_000, 1_000_000}

// anyNanoseconds reads what nanoseconds does not know at once.
func (s *scanner) anyNanoseconds() Span {
	if s.null() {
		return Null
	}
	from := s.i
	v, more := s.small(12)
	if !more {
		return Span(v * 1e6)
	}
	if v >= 0 && s.i < len(s.b) && s.b[s.i] == '.' {
		point := s.i
		s.i++
		unit := int64(1e6)
		for s.i < len(s.b) && s.b[s.i]-'0' <= 9 && unit > 1 {
			v = v*10 + int64(s.b[s.i]-'0')
			unit /= 10
			s.i++
		}
		if s.i > point+1 && s.ends() {
			return Span(v * unit)
		}
	}
	s.i = from
	text := s.number()
	if len(text) == 0 {
		return Null
	}
	ms := s.parse(text)
	if ms < 0 {
		s.fail("a time below 0")
		return Null
	}
	return Span(min(math.Round(ms*1e6), 1<<62))
}

// small reads a whole number of at most so many digits that is not negative and has no leading 0; more
// says that it is not, or not only, that.
func (s *scanner) small(digits int) (v int64, more bool) {
	if v, n := s.eight(s.i); n-1 < 7 && (n == 1 || s.b[s.i] != '0') {
		s.i += int(n)
		return int64(v), !s.ends()
	}
	from := s.i
	for s.i < len(s.b) && s.b[s.i]-'0' <= 9 {
		v = v*10 + int64(s.b[s.i]-'0')
		if s.i++; s.i-from > digits {
			return -1, true
		}
	}
	if s.i == from || s.b[from] == '0' && s.i > from+1 {
		return -1, true
	}
	return v, !s.ends()
}

// ends says whether a number ends here.
func (s *scanner) ends() bool {
	return s.i == len(s.b) || closes(s.b[s.i])
}

func closes(c byte) bool { return c == ',' || c == '}' || c == ']' || c <= ' ' }

func (s *scanner) parse(text []byte) float64 {
	f, err := strconv.ParseFloat(alias(text), 64)
	if err != nil {
		s.fail("a number out of range")
	}
	return f
}

// rate reads a number that is not negative, or null as NaN.
func (s *scanner) rate() float64 {
	if s.null() {
		return math.NaN()
	}
	text := s.number()
	if len(text) == 0 {
		return math.NaN()
	}
	v := s.parse(text)
	switch {
	case v < 0:
		s.fail("a number below 0")
	case v > maxRate:
		s.fail("a number that is too large")
	}
	return v
}

// count reads a whole number from 0 to most, or null as none.
func (s *scanner) count(none, most int) int {
	n := s.integer(none)
	switch {
	case n > most:
		s.fail("a number that is too large")
	case n < 0 && n != none:
		s.fail("a number below 0")
	}
	return n
}

// integer reads a whole number, or null as none.
func (s *scanner) integer(none int) int {
	from := s.i
	if v, more := s.small(18); !more {
		return int(v)
	}
	if s.i = from; s.null() {
		return none
	}
	text := s.number()
	if len(text) == 0 {
		return none
	}
	n, err := strconv.Atoi(alias(text))
	if err != nil {
		s.fail("want a whole number")
		return none
	}
	return n
}

func (s *scanner) unsigned() uint64 {
	from := s.i
	if v, more := s.small(18); !more {
		return uint64(v)
	}
	if s.i = from; s.null() {
		return 0
	}
	text := s.number()
	n, err := strconv.ParseUint(alias(text), 10, 64)
	if err != nil {
		s.fail("want a whole number")
	}
	return n
}

func (s *scanner) boolean() bool {
	if s.null() {
		return false
	}
	switch s.peek() {
	case 't':
		if s.literal("true") {
			return true
		}
	case 'f':
		if s.literal("false") {
			return false
		}
	}
	s.fail("want true or false")
	return false
}

func (s *scanner) literal(word string) bool {
	if s.i+len(word) <= len(s.b) && string(s.b[s.i:s.i+len(word)]) == word {
		s.i += len(word)
		return true
	}
	return false
}

// skip passes over a value of which nobody knows anything but that it is JSON.
func (s *scanner) skip() {
	switch s.peek() {
	case '{':
		for more := s.open('{'); more; more = s.more('}') {
			if s.peek() != '"' {
				s.fail("want a key in quotes")
				return
			}
			s.pass()
			if s.peek() != ':' {
				s.fail("want : behind the key")
				return
			}
			s.i++
			s.skip()
		}
	case '[':
		for more := s.open('['); more; more = s.more(']') {
			s.skip()
		}
	case '"':
		s.pass()
	case 't', 'f':
		s.boolean()
	case 'n':
		s.null()
	default:
		s.number()
	}
}

// pass passes over a string.
func (s *scanner) pass() {
	b := s.b
	for i := s.i + 1; ; i++ {
		if i = unplain(b, i); i >= len(b) {
			break
		}
		switch c := b[i]; {
		case c == '"':
			s.i = i + 1
			return
		case c == '\\':
			_, n := s.escape(i)
			if n == 0 {
				s.i = i
				s.fail("a bad escape in a string")
				return
			}
			i += n - 1
		case c < ' ':
			s.i = i
			s.fail("a control character in a string")
			return
		}
	}
	s.fail("cut short")
}

// raw passes over a value and returns its text, nothing for null. Of an object or an array it looks only
// for where it ends: these are most of a line, and few readers look into them. next is the key that is
// written behind it.
func (s *scanner) raw(next string) []byte {
	if s.null() {
		return nil
	}
	first := s.peek()
	from := s.i
	if first != '{' && first != '[' {
		s.skip()
	} else if n := leap(s.b[from:], first, next); n > 0 {
		s.i += n
	} else {
		s.balance(first + 2) // ASCII: {} and []
	}
	if s.err != nil {
		return nil
	}
	return s.b[from:s.i]
}

// leap is how long the object or array is that b begins with, if it holds no further one of its kind and
// the key next is behind it; else 0. In JSON, a brace that a key follows is in no string: the key's quote
// would be that string's end, and no string is followed by a letter.
func leap(b []byte, open byte, next string) int {
	end := bytes.IndexByte(b, open+2) + 1 // ASCII: {} and []
	if end == 0 || next == "" || len(b)-end < len(next) || string(b[end:end+len(next)]) != next || bytes.IndexByte(b[1:end], open) >= 0 {
		return 0
	}
	return end
}

// balance passes over an object or an array that ends with last.
func (s *scanner) balance(last byte) {
	b, depth := s.b, 0
	for i := s.i; ; i++ {
		for i < len(b) && marks[b[i]] == 0 {
			i++
		}
		if i >= len(b) {
			break
		}
		switch marks[b[i]] {
		case opening:
			depth++
		case closing:
			if depth--; depth > 0 {
				continue
			}
			if s.i = i; b[i] != last {
				s.fail("want " + string(rune(last)))
				return
			}
			s.i++
			return
		default:
			for i++; i < len(b) && b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		}
	}
	s.fail("cut short")
}

// marks are the bytes that matter where only balance does.
var marks = [256]mark{'{': opening, '[': opening, '}': closing, ']': closing, '"': quote}

type mark uint8

const (
	opening mark = iota + 1
	closing
	quote
)

// The keys of a line and of its objects, in the order in which they are written: what is done with
// each goes by its place here.
var (
	lineKeys   = quoteAll("version", "time", "id", "request_id", "client_request_id", "endpoint", "method", "path", "model", "key", "peer", "stream", "priority", "prompts", "n", "echo", "deadline_ms", "params", "tokens", "at_ms", "metrics", "detail", "slowed_by_ms", "timeline", "sequences", "outcome", "stop", "status", "error", "bytes", "engine")
	tokenKeys  = quoteAll("prompt", "cached", "computed", "output", "longest", "reasoning", "discarded", "drafted", "accepted")
	stampKeys  = quoteAll("queued", "scheduled", "first_token", "last_token", "finished", "delivered")
	metricKeys = quoteAll("time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second", "speculative_decoding")
	detailKeys = quoteAll("arrival_to_first_token_ms", "e2e_ms", "prefill_ms", "prefill_tokens_per_second", "decode_tokens_per_second", "preemptions", "preempted_ms", "steps", "mean_batch_size", "itl_ms")
	gapKeys    = quoteAll("p50", "p90", "p99", "max", "count")
	slowedKeys = quoteAll("queue_capacity", "queue_kv", "prefill_of_others", "preemption", "device_restart", "slow_client")
	stopKeys   = quoteAll("string", "token")
	errorKeys  = quoteAll("type", "code", "param", "message")
	eventKeys  = quoteAll("e", "seq", "at", "ms", "why", "prompt", "output", "cached", "steps", "step_ms", "batch", "others", "excess_ms", "slot_ms", "budget_ms", "kv_ms", "slots", "ahead", "merged", "sequences")
)

// quoteAll makes keys what they are in a line, with the comma before them.
func quoteAll(names ...string) []string {
	for i, n := range names {
		names[i] = `,"` + n + `":`
	}
	return names
}

// What first and next say when a key is none of those that are known, and when there are no more.
const (
	unknown = -1
	over    = -2
)

// first enters an object, reads its first key and says which of keys it is.
func (s *scanner) first(keys []string) int {
	if !s.open('{') {
		return over
	}
	if k := keys[0][1:]; len(s.b)-s.i >= len(k) && string(s.b[s.i:s.i+len(k)]) == k {
		s.i += len(k)
		s.at = keys[0]
		return 0
	}
	return s.which(keys)
}

// next reads the key behind the value of the k-th one and says which it is: most likely the one that is
// written there.
func (s *scanner) next(keys []string, k int) int {
	if k++; k < len(keys) {
		if key := keys[k]; len(s.b)-s.i >= len(key) && string(s.b[s.i:s.i+len(key)]) == key {
			s.i += len(key)
			s.at = key
			return k
		}
	}
	if !s.more('}') {
		return over
	}
	return s.which(keys)
}

// which reads a key and the colon and says which of keys it is.
func (s *scanner) which(keys []string) int {
	name := s.key()
	for i, k := range keys {
		if bare(k) == name {
			return i
		}
	}
	return unknown
}

// bare is a key without what quoteAll put around it.
func bare(key string) string { return strings.TrimSuffix(strings.TrimPrefix(key, `,"`), `":`) }

func (s *scanner) field(e *Entry, k int) {
	switch k {
	case 0: // version
		e.Version = s.count(0, math.MaxInt32)
	case 1: // time
		e.Time = s.moment()
	case 2: // id
		e.ID = s.unsigned()
	case 3: // request_id
		e.RequestID = s.str()
	case 4: // client_request_id
		e.ClientRequestID = s.str()
	case 5: // endpoint
		e.Endpoint = s.str()
	case 6: // method
		e.Method = s.str()
	case 7: // path
		e.Path = s.str()
	case 8: // model
		e.Model = s.str()
	case 9: // key
		e.Key = s.str()
	case 10: // peer
		e.Peer = s.str()
	case 11: // stream
		e.Stream = s.boolean()
	case 12: // priority
		e.Priority = s.integer(0)
	case 13: // prompts
		e.Prompts = s.count(0, math.MaxInt32)
	case 14: // n
		e.N = s.count(0, math.MaxInt32)
	case 15: // echo
		e.Echo = s.boolean()
	case 16: // deadline_ms
		e.Deadline = s.span()
	case 17: // params
		e.Params = s.raw(lineKeys[k+1])
	case 18: // tokens
		for k := s.first(tokenKeys); k != over; k = s.next(tokenKeys, k) {
			s.tokens(&e.Tokens, k)
		}
	case 19: // at_ms
		for k := s.first(stampKeys); k != over; k = s.next(stampKeys, k) {
			s.stamps(&e.At, k)
		}
	case 20: // metrics
		for k := s.first(metricKeys); k != over; k = s.next(metricKeys, k) {
			s.metrics(&e.Metrics, k)
		}
	case 21: // detail
		for k := s.first(detailKeys); k != over; k = s.next(detailKeys, k) {
			s.detail(&e.Detail, k)
		}
	case 22: // slowed_by_ms
		for k := s.first(slowedKeys); k != over; k = s.next(slowedKeys, k) {
			s.slowed(&e.SlowedBy, k)
		}
	case 23: // timeline
		e.Timeline = s.raw(lineKeys[k+1])
	case 24: // sequences
		e.Sequences = s.count(0, math.MaxInt32)
	case 25: // outcome
		e.Outcome = s.str()
	case 26: // stop
		for k := s.first(stopKeys); k != over; k = s.next(stopKeys, k) {
			switch k {
			case 0:
				e.StopString = s.str()
			case 1:
				e.StopToken = s.count(-1, math.MaxInt32)
			default:
				s.skip()
			}
		}
	case 27: // status
		e.Status = s.count(0, 999)
	case 28: // error
		for k := s.first(errorKeys); k != over; k = s.next(errorKeys, k) {
			if to := [...]*string{&e.Error.Type, &e.Error.Code, &e.Error.Param, &e.Error.Message}; k >= 0 {
				*to[k] = s.str()
			} else {
				s.skip()
			}
		}
	case 29: // bytes
		e.Bytes = int64(s.count(0, maxBytes))
	case 30: // engine
		e.Engine = s.count(-1, math.MaxInt32)
	default:
		s.skip()
	}
}

func (s *scanner) tokens(t *Tokens, k int) {
	if k < 0 {
		s.skip()
		return
	}
	(*[9]int)(unsafe.Pointer(t))[k] = s.count(0, maxCount) // which it is, in the order of tokenKeys
}

func (s *scanner) stamps(t *At, k int) {
	if k < 0 {
		s.skip()
		return
	}
	(*[6]Span)(unsafe.Pointer(t))[k] = s.span() // which it is, in the order of stampKeys
}

func (s *scanner) metrics(m *Metrics, k int) {
	switch k {
	case 0: // time_to_first_token_ms
		m.TimeToFirstToken = s.span()
	case 1: // generation_time_ms
		m.GenerationTime = s.span()
	case 2: // queue_time_ms
		m.QueueTime = s.span()
	case 3: // mean_itl_ms
		m.MeanITL = s.span()
	case 4: // tokens_per_second
		m.TokensPerSecond = s.rate()
	case 5: // speculative_decoding
		m.Speculative = s.raw("")
	default:
		s.skip()
	}
}

func (s *scanner) detail(d *Detail, k int) {
	switch k {
	case 0: // arrival_to_first_token_ms
		d.ArrivalToFirstToken = s.span()
	case 1: // e2e_ms
		d.EndToEnd = s.span()
	case 2: // prefill_ms
		d.Prefill = s.span()
	case 3, 4: // prefill_tokens_per_second, decode_tokens_per_second
		if !s.null() { // which say nothing that times and counts do not
			s.number()
		}
	case 5: // preemptions
		d.Preemptions = s.count(0, math.MaxInt32)
	case 6: // preempted_ms
		d.Preempted = s.span()
	case 7: // steps
		d.Steps = s.count(0, maxCount)
	case 8: // mean_batch_size
		d.MeanBatch = s.rate()
	case 9: // itl_ms
		for k := s.first(gapKeys); k != over; k = s.next(gapKeys, k) {
			switch k {
			case 0, 1, 2, 3:
				*[...]*Span{&d.ITLP50, &d.ITLP90, &d.ITLP99, &d.ITLMax}[k] = s.span()
			case 4:
				d.ITLCount = s.count(0, maxCount)
			default:
				s.skip()
			}
		}
	default:
		s.skip()
	}
}

func (s *scanner) slowed(t *SlowedBy, k int) {
	if k < 0 {
		s.skip()
		return
	}
	(*[6]Span)(unsafe.Pointer(t))[k] = s.span() // which it is, in the order of slowedKeys
}

// Events reads the timeline; nil when the line has none. Their strings lie in the line.
func (e *Entry) Events() ([]Event, error) {
	if len(e.Timeline) == 0 {
		return nil, nil
	}
	var events []Event
	s := scanner{b: e.Timeline}
	for more := s.open('['); more; more = s.more(']') {
		var v Event
		for k := s.first(eventKeys); k != over; k = s.next(eventKeys, k) {
			s.event(&v, k)
		}
		events = append(events, v)
	}
	if s.err != nil {
		return nil, fmt.Errorf("timeline: %w", s.err)
	}
	return events, nil
}

func (s *scanner) event(v *Event, k int) {
	switch k {
	case 0: // e
		v.Kind = s.str()
	case 1: // seq
		v.Seq = s.count(0, maxCount)
	case 2: // at
		v.At = max(s.span(), 0)
	case 3: // ms
		v.Dur = max(s.span(), 0)
	case 4: // why
		v.Why = s.str()
	case 5: // prompt
		v.Prompt = s.count(0, maxCount)
	case 6: // output
		v.Output = s.count(0, maxCount)
	case 7: // cached
		v.Cached = s.count(0, maxCount)
	case 8: // steps
		v.Steps = s.count(0, maxCount)
	case 9: // step_ms
		v.Busy = max(s.span(), 0)
	case 10: // batch
		v.Batch = s.rate()
	case 11: // others
		v.Others = s.count(0, maxCount)
	case 12: // excess_ms
		v.Excess = max(s.span(), 0)
	case 13: // slot_ms
		v.Slot = max(s.span(), 0)
	case 14: // budget_ms
		v.Budget = max(s.span(), 0)
	case 15: // kv_ms
		v.Blocks = max(s.span(), 0)
	case 16: // slots
		v.Slots = s.count(0, maxCount)
	case 17: // ahead
		v.Ahead = s.count(0, maxCount)
	case 18: // merged
		v.Merged = s.count(0, maxCount)
	case 19: // sequences
		v.Sequences = s.count(0, maxCount)
	default:
		s.skip()
	}
}
