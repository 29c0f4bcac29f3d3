package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/gpu/host"
	"github.com/troupe-llm/troupe/model/fetch"
)

// healthy is a machine on which nothing is wrong.
func healthy() machine {
	return machine{
		OS: "linux", Arch: "amd64", CPU: "Some CPU", Cores: 8, Procs: 8, Threads: 8, Features: []string{"AVX2", "FMA", "AVX-512"}, Kernels: "avx2",
		Memory: 32 << 30, Available: 30 << 30, HugePages: "madvise",
		Settings: fetch.Settings{Endpoint: "https://huggingface.co", Cache: "/cache/hub", Files: "/cache/troupe"},
		Folders:  []folder{{Path: "/cache/troupe", Free: 100 << 30}, {Path: "/cache/hub", Free: 100 << 30}},
		Devices:  []string{"host", "sim"}, OpenFiles: 1 << 20, OpenFilesMost: 1 << 20, Port: 8000,
	}
}

func TestAHealthyMachineGetsNoAdvice(t *testing.T) {
	for _, f := range diagnose(healthy()) {
		if f.Level != levelOK || f.Advice != "" || f.Command != "" || f.Found == "" {
			t.Errorf("%+v", f)
		}
	}
}

func TestEachThingThatIsWrongGetsItsAdvice(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*machine)
		check   string
		level   level
		found   string
		command string
	}{
		"threads beyond the control group's limit": {func(m *machine) { m.CPULimit = 2.5 }, "CPU", levelWarn, "allows 2.5; GOMAXPROCS is 8", "GOMAXPROCS=2 troupe serve --threads 2"},
		"a limit of less than a core":              {func(m *machine) { m.CPULimit, m.Procs = 0.5, 8 }, "CPU", levelWarn, "allows 0.5", "--threads 1"},
		"Go's own choice under a limit":            {func(m *machine) { m.CPULimit, m.Procs, m.Threads = 2.5, 3, 3 }, "CPU", levelOK, "allows 2.5; the CPU device uses 3 threads", ""},
		"kernels":                                  {func(*machine) {}, "instructions", levelOK, "AVX2, FMA, AVX-512; the CPU device uses AVX2, FMA and F16C", ""},
		"no kernels for a new processor":           {func(m *machine) { m.Features, m.Kernels, m.Arch = []string{"NEON"}, "portable", "arm64" }, "instructions", levelOK, "NEON; the CPU device uses none of them", ""},
		"kernels that were chosen":                 {func(m *machine) { m.Kernels, m.Forced = "portable", true }, "instructions", levelWarn, "since TROUPE_CPU says so", "unset TROUPE_CPU"},
		"kernels that are not there":               {func(m *machine) { m.KernelsErr = errors.New("TROUPE_CPU is \"avx9\"") }, "instructions", levelFail, "avx9", "unset TROUPE_CPU"},
		"cores left idle":                          {func(m *machine) { m.Procs = 2 }, "CPU", levelWarn, "GOMAXPROCS is 2", "unset GOMAXPROCS"},
		"an old processor":                         {func(m *machine) { m.Features = nil }, "instructions", levelWarn, "none", ""},
		"another architecture":                     {func(m *machine) { m.Features, m.Arch = nil, "riscv64" }, "instructions", levelOK, "riscv64", ""},
		"hardly any memory":                        {func(m *machine) { m.Available = 100 << 20 }, "memory", levelFail, "100 MiB available", ""},
		"little memory":                            {func(m *machine) { m.Available, m.MemoryLimit = 1<<30, 1<<30 }, "memory", levelWarn, "limited to 1.0 GiB", "--kv-cache-memory-bytes"},
		"memory that is not told":                  {func(m *machine) { m.Available, m.Memory = 0, 0 }, "memory", levelOK, "not known", ""},
		"a variable that is wrong":                 {func(m *machine) { m.SettingsErr = errors.New("HF_ENDPOINT is no address") }, "models", levelFail, "HF_ENDPOINT", ""},
		"a cache that cannot be written":           {func(m *machine) { m.Folders[0].Writable = os.ErrPermission }, "models", levelWarn, "permission", "export TROUPE_CACHE="},
		"a full disk":                              {func(m *machine) { m.Folders[1].Free = 1 << 30 }, "models", levelWarn, "1.0 GiB free", "export HF_HUB_CACHE="},
		"no downloads":                             {func(m *machine) { m.Settings.Offline = true }, "hub", levelWarn, "HF_HUB_OFFLINE", "unset HF_HUB_OFFLINE"},
		"a hub out of reach":                       {func(m *machine) { m.Hub = &hubAnswer{Err: errors.New("no route")} }, "hub", levelWarn, "no route", "HTTPS_PROXY"},
		"a hub that answers":                       {func(m *machine) { m.Hub = &hubAnswer{Took: time.Second} }, "hub", levelOK, "reached in 1s", ""},
		"a token":                                  {func(m *machine) { m.Settings.TokenFrom = "HF_TOKEN" }, "hub", levelOK, "token of HF_TOKEN", ""},
		"a GPU without its library":                {func(m *machine) { m.GPUs, m.Nodes = []string{"H200"}, true }, "GPU", levelWarn, "H200", "nvidia-driver"},
		"a GPU not given to the container":         {func(m *machine) { m.Driver, m.Container = "1.2", true }, "GPU", levelWarn, "libcuda", "docker run --gpus all"},
		"a library without a device":               {func(m *machine) { m.LibCUDA = "/usr/lib/libcuda.so.1" }, "GPU", levelWarn, "no device", "modprobe"},
		"a GPU that is not used": {func(m *machine) {
			m.LibCUDA, m.Nodes, m.Driver, m.GPUs = "/lib/libcuda.so.1", true, "580.1", []string{"H200"}
		}, "GPU", levelOK, "H200, driver 580.1, /lib/libcuda.so.1; this version of Troupe computes on the CPU", ""},
		"few open files":             {func(m *machine) { m.OpenFiles, m.OpenFilesMost = 1024, 4096 }, "open files", levelWarn, "up to 1024", "ulimit -n"},
		"few that cannot be more":    {func(m *machine) { m.OpenFiles, m.OpenFilesMost = 1024, 1024 }, "open files", levelWarn, "up to 1024", "limits.d"},
		"hardly any open files":      {func(m *machine) { m.OpenFiles, m.OpenFilesMost = 64, 64 }, "open files", levelFail, "up to 64", "limits.d"},
		"a system without the limit": {func(m *machine) { m.OpenFiles, m.OS = -1, "windows" }, "open files", levelOK, "windows", ""},
		"a port that is taken":       {func(m *machine) { m.PortTaken = "another program has it" }, "port", levelWarn, "8000 is not free", "troupe serve --port 8001"},
	} {
		m := healthy()
		c.change(&m)
		all := diagnose(m)
		i := slices.IndexFunc(all, func(f finding) bool { return f.Check == c.check && strings.Contains(f.Found, c.found) })
		if i < 0 {
			t.Errorf("%s: no finding %s with %q in %+v", name, c.check, c.found, all)
			continue
		}
		if f := all[i]; f.Level != c.level || !strings.Contains(f.Command, c.command) || (f.Level == levelOK) != (f.Advice == "") {
			t.Errorf("%s: %+v", name, f)
		}
		for k, f := range all {
			if k != i && f.Level != levelOK {
				t.Errorf("%s: also %+v", name, f)
			}
		}
	}
}

func TestThisMachineIsLookedAt(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	ln.Close()
	code, out, errs := invoke(t, "doctor", "--json", "--port="+port)
	var report struct {
		OK       bool
		Findings []finding
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil || report.OK != (code == 0) || len(report.Findings) < 8 {
		t.Fatalf("exit %d, %v: %s %s", code, err, out, errs)
	}
	for _, f := range report.Findings {
		if f.Check == "instructions" && !strings.Contains(f.Found, "the CPU device uses") && slices.Contains([]string{"amd64", "arm64"}, runtime.GOARCH) {
			t.Errorf("%+v", f)
		}
		if f.Check == "CPU" && f.Level == levelOK && !strings.Contains(f.Found, fmt.Sprintf("uses %s (", plural(host.Threads(), "thread"))) {
			t.Errorf("%+v", f)
		}
		if f.Check == "" || f.Found == "" || f.Level != levelOK && f.Advice == "" {
			t.Errorf("%+v", f)
		}
		if f.Check == "port" && !strings.Contains(f.Found, "is free") && f.Level == levelOK {
			t.Errorf("%+v", f)
		}
	}
	text := &strings.Builder{}
	writeFindings(&screen{w: text}, report.Findings)
	if strings.Count(text.String(), "\n") < len(report.Findings) || strings.Contains(text.String(), "\x1b") {
		t.Errorf("%q", text)
	}
}

func TestATakenPortIsFoundAndItsOwnerIfItIsTroupe(t *testing.T) {
	p := start(t, "--device=sim", "--request-log=none")
	_, port, _ := strings.Cut(strings.TrimPrefix(p.url, "http://"), ":")
	_, out, _ := invoke(t, "doctor", "--port="+port)
	if !strings.Contains(out, "another Troupe serves there") {
		t.Errorf("%s", out)
	}
	if code, _, errs := invoke(t, "doctor", "--port=0"); code != 2 || !strings.Contains(errs, "--port") {
		t.Errorf("exit %d, %q", code, errs)
	}
}

func TestAFolderThatIsNotThereYetIsJudgedByTheOneAbove(t *testing.T) {
	dir := t.TempDir()
	if err := writable(filepath.Join(dir, "a", "b")); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%v is left behind", left)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writable(filepath.Join(file, "sub")); err == nil {
		t.Error("a file is taken for a folder")
	}
	if free, err := fetch.FreeSpace(filepath.Join(dir, "a", "b")); err != nil || free <= 0 {
		t.Errorf("%d, %v", free, err)
	}
}
