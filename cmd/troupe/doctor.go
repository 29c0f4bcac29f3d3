package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/troupe-llm/troupe/gpu/host"
	"github.com/troupe-llm/troupe/model/fetch"
)

// doctorCmd looks at the machine.
type doctorCmd struct {
	Port   int  `default:"8000" placeholder:"N" help:"The port that is to be free. Default: ${default}."`
	Online bool `help:"Also ask whether the hub can be reached, where models are downloaded from."`
	JSON   bool `name:"json" help:"As a JSON object."`
}

// Help implements kong.HelpProvider.
func (*doctorCmd) Help() string {
	return `Says what this machine has, and what to set, with the commands for it. It changes nothing. Examples:

  troupe doctor
  troupe doctor --online --port 9000
  troupe doctor --json

Exit status: 0 unless a finding is "fail"; then 1.`
}

// Validate implements kong's interface.
func (c *doctorCmd) Validate() error { return numberWithin("--port", c.Port, 1, 65535) }

// Run implements the command.
func (c *doctorCmd) Run(ctx *kong.Context, stdout io.Writer) error {
	m := lookAround(c.Port)
	for _, n := range commandsOf(ctx.Model) {
		for _, f := range n.Flags {
			if n.FullPath() == "troupe serve" && f.Name == "device" {
				m.Devices = f.EnumSlice()
			}
		}
	}
	if c.Online {
		m.Hub = askHub(m.Settings.Endpoint)
	}
	all := diagnose(m)
	failed := 0
	for _, f := range all {
		if f.Level == levelFail {
			failed++
		}
	}
	if c.JSON {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		if err := e.Encode(map[string]any{"build": thisBuild(), "ok": failed == 0, "findings": all}); err != nil {
			return err
		}
	} else {
		s := &screen{w: stdout, terminal: terminal(stdout)}
		if s.colour = s.terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"; s.colour {
			enableEscapes(stdout)
		}
		writeFindings(s, all)
		if s.failed != nil {
			return s.failed
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d findings keep a model from being served well: see fail above", failed, len(all))
	}
	return nil
}

// level is how bad a finding is.
type level string

const (
	levelOK   level = "ok"
	levelWarn level = "warn" // works, but not well, or not with everything
	levelFail level = "fail" // does not work
)

// finding is one thing looked at.
type finding struct {
	Check   string `json:"check"`
	Level   level  `json:"level"`
	Found   string `json:"found"`
	Advice  string `json:"advice,omitempty"`
	Command string `json:"command,omitempty"` // which does what is advised
}

// writeFindings writes for people.
func writeFindings(s *screen, all []finding) {
	styles := map[level]string{levelOK: "32", levelWarn: "33", levelFail: red}
	for _, f := range all {
		s.styled(styles[f.Level], "%-4s", f.Level)
		fmt.Fprintf(s, "  %-12s %s\n", f.Check, f.Found)
		if f.Advice != "" {
			fmt.Fprintf(s, "%18s -> %s\n", "", f.Advice)
		}
		if f.Command != "" {
			fmt.Fprintf(s, "%18s    %s\n", "", f.Command)
		}
	}
}

// machine is what was found out about this one. What is not known is zero, unless it says otherwise.
type machine struct {
	OS, Arch, Kernel string
	Container        bool

	CPU        string
	Cores      int     // that this process may run on
	Procs      int     // GOMAXPROCS
	CPULimit   float64 // cores' worth of time that the control group allows; 0: no limit
	Threads    int     // that the CPU device takes
	Features   []string
	Kernels    string // the instruction set that the CPU device computes with
	KernelsErr error  // of the variable that chooses it
	Forced     bool   // the variable is set

	Memory, Available, MemoryLimit int64 // bytes; the limit is the control group's, 0: none
	HugePages                      string

	Settings    fetch.Settings
	SettingsErr error
	Folders     []folder // where models are kept

	Driver  string   // NVIDIA's, its version
	GPUs    []string // their names
	Nodes   bool     // the device files of GPUs are there
	LibCUDA string   // the path of the driver's library
	Devices []string // what --device knows

	OpenFiles, OpenFilesMost int64 // the limits of this process and the highest that it may set; −1: no such thing
	Port                     int
	PortTaken                string // why the port is not free; empty: it is

	Hub *hubAnswer // nil: not asked
}

// folder is where models are kept.
type folder struct {
	Path     string
	Free     int64 // bytes; −1: not known
	Writable error // nil: it is
}

// hubAnswer is what came of asking the hub.
type hubAnswer struct {
	Took time.Duration
	Err  error
}

// askHub asks for the hub's headers.
func askHub(endpoint string) *hubAnswer {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	began := time.Now()
	r, err := http.NewRequestWithContext(ctx, http.MethodHead, endpoint, nil)
	if err != nil {
		return &hubAnswer{Err: err}
	}
	response, err := http.DefaultClient.Do(r)
	if err == nil {
		response.Body.Close()
		if response.StatusCode >= 500 {
			err = fmt.Errorf("it answers %s", response.Status)
		}
	}
	return &hubAnswer{Took: time.Since(began), Err: err}
}

// What is asked of a machine. The stream count is that of the server's own load tests.
const (
	streams      = 1000
	filesBesides = 256       // log, model, listeners, and connections that only look in
	memoryLeast  = 256 << 20 // the program, a model of some million parameters and its KV cache
	memoryGood   = 2 << 30   // a model of a billion parameters, quantised to 4 bits or so, and its cache
	diskGood     = 5 << 30   // the file of a model of some billion parameters
)

// kernelNames says of the instruction sets that the CPU device has kernels for what is in them.
var kernelNames = map[string]string{"portable": "none of them (Go code)", "avx2": "AVX2, FMA and F16C", "avx512": "AVX-512 with VNNI"}

// diagnose says what the facts mean.
func diagnose(m machine) []finding {
	var all []finding
	add := func(check string, l level, found, advice, command string) {
		all = append(all, finding{check, l, found, advice, command})
	}
	ok := func(check, format string, args ...any) { add(check, levelOK, fmt.Sprintf(format, args...), "", "") }

	system := strings.TrimSpace(m.OS + "/" + m.Arch + " " + m.Kernel)
	if m.Container {
		system += ", in a container"
	}
	ok("system", "%s", system)

	cpu := m.CPU
	if cpu == "" {
		cpu = "processor of unknown name"
	}
	cpu = fmt.Sprintf("%s, %s", cpu, plural(m.Cores, "core"))
	if m.CPULimit > 0 {
		cpu += fmt.Sprintf(", of which the control group allows %.4g", m.CPULimit)
	}
	switch {
	case m.CPULimit > 0 && m.CPULimit < float64(m.Cores) && float64(m.Procs) >= m.CPULimit+1 && m.Procs > 2:
		n := max(int(m.CPULimit), 1)
		add("CPU", levelWarn, fmt.Sprintf("%s; GOMAXPROCS is %d", cpu, m.Procs),
			"more threads than the limit allows are stopped for a part of each period, which shows as pauses between tokens: use fewer, or raise the limit",
			fmt.Sprintf("GOMAXPROCS=%d troupe serve --threads %d", n, n))
	case m.Procs < m.Cores && m.CPULimit == 0:
		add("CPU", levelWarn, fmt.Sprintf("%s; GOMAXPROCS is %d", cpu, m.Procs), "some cores are not used: let the variable be", "unset GOMAXPROCS")
	default:
		ok("CPU", "%s; the CPU device uses %s (--threads)", cpu, plural(m.Threads, "thread"))
	}
	kernels, known := kernelNames[m.Kernels]
	if !known {
		kernels = m.Kernels
	}
	features := strings.Join(m.Features, ", ")
	switch {
	case m.KernelsErr != nil:
		add("instructions", levelFail, m.KernelsErr.Error(), "the CPU device does not start: let the variable be", "unset "+host.CPUVariable)
	case len(m.Features) > 0 && m.Forced:
		add("instructions", levelWarn, fmt.Sprintf("%s; the CPU device uses %s, since %s says so", features, kernels, host.CPUVariable),
			"the variable is for comparisons: without it the best is used", "unset "+host.CPUVariable)
	case len(m.Features) > 0:
		ok("instructions", "%s; the CPU device uses %s", features, kernels)
	case m.Arch == "amd64" || m.Arch == "arm64":
		add("instructions", levelWarn, "none for vectors of numbers that matter here (AVX2, AVX-512, NEON)", "a processor this old computes slowly: choose a small model", "")
	default:
		ok("instructions", "not looked at on %s", m.Arch)
	}

	if m.Memory == 0 && m.Available == 0 {
		ok("memory", "not known on %s", m.OS)
	} else {
		found := fetch.SizeText(m.Memory)
		if m.Available > 0 {
			found += ", " + fetch.SizeText(m.Available) + " available"
		}
		if m.MemoryLimit > 0 {
			found += ", limited to " + fetch.SizeText(m.MemoryLimit) + " by the control group"
		}
		free := m.Available
		if free == 0 {
			free = m.Memory
		}
		switch {
		case free < memoryLeast:
			add("memory", levelFail, found, "too little for any model but the smallest: end other programs, or raise the limit", "")
		case free < memoryGood:
			add("memory", levelWarn, found, "enough for small models only (the weights, and as much again for the KV cache of many requests): bound the cache", "troupe serve --kv-cache-memory-bytes 128MiB --max-num-seqs 8")
		default:
			ok("memory", "%s", found)
		}
	}
	if m.HugePages != "" {
		ok("huge pages", "transparent ones: %s", m.HugePages)
	}

	if m.SettingsErr != nil {
		add("models", levelFail, m.SettingsErr.Error(), "correct the variable, or unset it", "")
	}
	for _, f := range m.Folders {
		found := f.Path
		if f.Free >= 0 {
			found += ", " + fetch.SizeText(f.Free) + " free"
		}
		variable := fetch.CacheVariable
		if f.Path == m.Settings.Cache {
			variable = "HF_HUB_CACHE"
		}
		switch {
		case f.Writable != nil:
			add("models", levelWarn, found+", which cannot be written: "+f.Writable.Error(), "models can be read, but not downloaded: choose another folder", "export "+variable+"=/path/to/folder")
		case f.Free >= 0 && f.Free < diskGood:
			add("models", levelWarn, found, "a model has 0.1 to 20 GiB: make room, or choose a folder on another disk", "export "+variable+"=/path/to/folder")
		default:
			ok("models", "%s", found)
		}
	}
	if s := m.Settings; s.Endpoint != "" {
		found := s.Endpoint
		if s.TokenFrom != "" {
			found += ", with the token of " + s.TokenFrom
		}
		switch {
		case s.Offline:
			add("hub", levelWarn, found+"; HF_HUB_OFFLINE is set", "only models that are in the cache already can be used: to download, unset it", "unset HF_HUB_OFFLINE TRANSFORMERS_OFFLINE")
		case m.Hub == nil:
			ok("hub", "%s; not asked (--online does)", found)
		case m.Hub.Err != nil:
			add("hub", levelWarn, found+" cannot be reached: "+m.Hub.Err.Error(), "models must come from files: behind a proxy, name it; a mirror goes into HF_ENDPOINT", "export HTTPS_PROXY=http://proxy:3128")
		default:
			ok("hub", "%s, reached in %v", found, m.Hub.Took.Round(time.Millisecond))
		}
	}

	gpu := strings.Join(m.GPUs, ", ")
	if gpu == "" {
		gpu = "an NVIDIA GPU"
	}
	switch {
	case m.Driver == "" && m.LibCUDA == "" && !m.Nodes && len(m.GPUs) == 0:
		ok("GPU", "none found")
	case m.LibCUDA == "":
		command := "sudo apt-get install nvidia-driver"
		if m.Container {
			command = "docker run --gpus all …"
		}
		add("GPU", levelWarn, gpu+", but the driver's library libcuda is not installed", "install NVIDIA's driver; in a container, give it the GPU", command)
	case !m.Nodes:
		add("GPU", levelWarn, "the driver's library at "+m.LibCUDA+", but no device", "load the driver; in a container, give it the GPU", "sudo modprobe nvidia nvidia_uvm")
	default:
		found := gpu
		if m.Driver != "" {
			found += ", driver " + m.Driver
		}
		found += ", " + m.LibCUDA
		if !slices.Contains(m.Devices, "cuda") {
			found += "; this version of Troupe computes on the CPU"
		}
		ok("GPU", "%s", found)
	}

	const files = streams + filesBesides
	switch {
	case m.OpenFiles < 0:
		ok("open files", "no limit on %s", m.OS)
	case m.OpenFiles >= files:
		ok("open files", "up to %s, enough for %d streams", limitText(m.OpenFiles), streams)
	default:
		l := levelWarn
		if m.OpenFiles < filesBesides {
			l = levelFail
		}
		command := fmt.Sprintf("ulimit -n %d", 1<<14)
		if m.OpenFilesMost < files {
			command = `echo "* - nofile 16384" | sudo tee /etc/security/limits.d/troupe.conf   # then log in again; for systemd: LimitNOFILE=16384`
		}
		add("open files", l, fmt.Sprintf("up to %d", m.OpenFiles), fmt.Sprintf("each connection is one: %d streams need %d", streams, files), command)
	}

	if m.PortTaken != "" {
		add("port", levelWarn, fmt.Sprintf("%d is not free: %s", m.Port, m.PortTaken), "serve on another one, or end what has it", fmt.Sprintf("troupe serve --port %d", otherPort(m.Port)))
	} else {
		ok("port", "%d is free", m.Port)
	}
	return all
}

func otherPort(port int) int {
	if port == 65535 {
		return 8000
	}
	return port + 1
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// limitText writes a limit, of which the highest mean none.
func limitText(n int64) string {
	if n >= 1<<40 {
		return "any number"
	}
	return strconv.FormatInt(n, 10)
}

// writable says whether files can be made in a folder, or in the nearest one above it that exists.
func writable(dir string) error {
	for {
		f, err := os.CreateTemp(dir, ".troupe-doctor-*")
		if err == nil {
			f.Close()
			return os.Remove(f.Name())
		}
		parent := parentOf(dir)
		if !errors.Is(err, os.ErrNotExist) || parent == dir {
			var path *os.PathError // its message has the name of a file that was never there
			if errors.As(err, &path) {
				err = path.Err
			}
			return err
		}
		dir = parent
	}
}

// baseFacts are those that Go tells on any system.
func baseFacts() machine {
	m := machine{
		OS: runtime.GOOS, Arch: runtime.GOARCH, Cores: runtime.NumCPU(), Procs: runtime.GOMAXPROCS(0), Threads: host.Threads(),
		Features: features(), Forced: os.Getenv(host.CPUVariable) != "", OpenFiles: -1, OpenFilesMost: -1,
	}
	m.Kernels, m.KernelsErr = host.Instructions()
	return m
}
