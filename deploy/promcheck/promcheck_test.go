// Package promcheck checks the dashboard and the rules under deploy against what a server really
// serves, with Prometheus' own parser. It is a module of its own, so that Troupe does not depend on
// Prometheus: run `go test ./...` in this folder.
package promcheck

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	commonmodel "github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

const (
	rulesFile = "../prometheus/troupe.rules.yml"
	dashboard = "../grafana/troupe.json"
	alertDocs = "../../docs/monitoring.md"
)

// vocabulary is what queries may speak of: series by name, each with its labels' values. A label
// whose values are not known beforehand has none.
type vocabulary map[string]map[string][]string

// targetLabels are what Prometheus itself adds to every series.
var targetLabels = []string{"job", "instance"}

// served asks a server on the simulated device, after a request, what it serves.
func served(t *testing.T) vocabulary {
	t.Helper()
	program := filepath.Join(t.TempDir(), "troupe")
	if runtime.GOOS == "windows" {
		program += ".exe"
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/troupe")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	server := exec.CommandContext(t.Context(), program, "serve", "--device=sim", "--port=0", "--log-format=json")
	messages, err := server.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Wait() }) // by then the test's context has ended it
	url := ""
	for lines := bufio.NewScanner(messages); url == "" && lines.Scan(); {
		var m struct{ Message, URL string }
		if json.Unmarshal(lines.Bytes(), &m) == nil && m.Message == "serving" {
			url = m.URL
		}
	}
	if url == "" {
		t.Fatal("the server does not serve")
	}
	go func() { _, _ = io.Copy(io.Discard, messages) }()
	answer, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(`{"model":"sim","prompt":"Hello","max_tokens":4}`))
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Fatal(answer.Status)
	}
	scrape, err := http.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer scrape.Body.Close()
	p := expfmt.NewTextParser(commonmodel.UTF8Validation)
	families, err := p.TextToMetricFamilies(scrape.Body)
	if err != nil {
		t.Fatal(err)
	}
	v := vocabulary{"up": {}}
	for name, family := range families {
		has := map[string][]string{}
		buckets := map[string][]string{}
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				has[l.GetName()] = append(has[l.GetName()], l.GetValue())
			}
			for _, b := range m.GetHistogram().GetBucket() {
				buckets["le"] = append(buckets["le"], fmt.Sprint(b.GetUpperBound()))
			}
		}
		// These differ from one server to the next.
		for _, own := range []string{"model_name", "engine", "block_size", "num_gpu_blocks", "enable_prefix_caching", "version"} {
			if _, ok := has[own]; ok {
				has[own] = nil
			}
		}
		v[name] = has
		if len(buckets) > 0 || strings.HasSuffix(name, "_seconds") {
			v[name+"_sum"], v[name+"_count"] = has, has
		}
		if len(buckets) > 0 {
			for l, values := range has {
				buckets[l] = values
			}
			v[name+"_bucket"] = buckets
			delete(v, name)
		}
	}
	return v
}

type rule struct {
	Record, Alert, Expr, For string
	Labels                   map[string]string
	Annotations              map[string]string
}

func rules(t *testing.T) (all []rule) {
	t.Helper()
	b, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}
	if err := yaml.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// check parses a query and looks its names up. name says which query it is.
func (v vocabulary) check(name, query string) (parser.Expr, error) {
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var wrong []error
	complain := func(format string, args ...any) {
		wrong = append(wrong, fmt.Errorf("%s: %s", name, fmt.Sprintf(format, args...)))
	}
	// Every label that some series of the query has.
	known := slices.Clone(targetLabels)
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			for l := range v[s.Name] {
				known = append(known, l)
			}
		}
		return nil
	})
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.VectorSelector:
			has, ok := v[n.Name]
			if !ok {
				complain("nothing serves or records %s", n.Name)
				break
			}
			for _, m := range n.LabelMatchers {
				values, ok := has[m.Name]
				switch {
				case m.Name == commonmodel.MetricNameLabel || slices.Contains(targetLabels, m.Name):
				case !ok:
					complain("%s has no label %s", n.Name, m.Name)
				case len(values) > 0 && !slices.ContainsFunc(values, m.Matches):
					complain("no series of %s matches %s", n.Name, m)
				}
			}
		case *parser.AggregateExpr:
			for _, l := range n.Grouping {
				if !slices.Contains(known, l) {
					complain("%s by %s, which is no label of %s", n.Op, l, n.Expr)
				}
			}
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				for _, l := range n.VectorMatching.MatchingLabels {
					if !slices.Contains(known, l) {
						complain("matching on %s, which is no label of any series", l)
					}
				}
			}
		}
		return nil
	})
	return expr, errors.Join(wrong...)
}

// add puts what the rules record among what may be asked for.
func (v vocabulary) add(t *testing.T, all []rule) {
	t.Helper()
	for _, r := range all {
		if r.Record == "" {
			continue
		}
		expr, err := v.check(r.Record, r.Expr)
		if err != nil {
			t.Error(err)
			continue
		}
		has := map[string][]string{}
		for _, l := range []string{"model_name", "instance"} {
			if strings.Contains(expr.String(), l) {
				has[l] = nil
			}
		}
		v[r.Record] = has
	}
}

// panel is a panel of the dashboard, with a row's panels in it.
type panel struct {
	Title, Type, Description string
	Panels                   []panel
	GridPos                  struct{ X, Y, W, H int }
	ID                       int
	Targets                  []struct {
		RefID, Expr string
		Datasource  struct{ Type, UID string }
	}
}

func TestEveryQueryOfTheDashboardNamesWhatIsServed(t *testing.T) {
	v := served(t)
	v.add(t, rules(t))
	b, err := os.ReadFile(dashboard)
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		UID, Title string
		Panels     []panel
		Templating struct {
			List []struct{ Name, Type, Definition string }
		}
		Annotations struct {
			List []struct{ Name, Expr string }
		}
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	// Grafana's own variables, and the dashboard's.
	replace := []string{"$__rate_interval", "1m", "$__interval", "1m"}
	for _, variable := range d.Templating.List {
		replace = append(replace, "$"+variable.Name, ".*")
	}
	grafana := strings.NewReplacer(replace...)
	for _, variable := range d.Templating.List {
		if variable.Type != "query" {
			continue
		}
		m := regexp.MustCompile(`^label_values\((.*), *(\w+)\)$`).FindStringSubmatch(variable.Definition)
		if m == nil {
			t.Errorf("variable %s: %s is not of the form label_values(series, label)", variable.Name, variable.Definition)
			continue
		}
		if _, err := v.check("variable "+variable.Name, "count by ("+m[2]+") ("+grafana.Replace(m[1])+")"); err != nil {
			t.Error(err)
		}
	}
	for _, a := range d.Annotations.List {
		if _, err := v.check("annotation "+a.Name, grafana.Replace(a.Expr)); err != nil {
			t.Error(err)
		}
	}
	queries := 0
	ids, taken := map[int]bool{}, map[[2]int]string{}
	var look func([]panel)
	look = func(panels []panel) {
		for _, p := range panels {
			look(p.Panels)
			if ids[p.ID] {
				t.Errorf("%s: the id %d is given twice", p.Title, p.ID)
			}
			ids[p.ID] = true
			if p.GridPos.X+p.GridPos.W > 24 || p.GridPos.W < 1 || p.GridPos.H < 1 {
				t.Errorf("%s: does not fit the grid of 24 columns: %+v", p.Title, p.GridPos)
			}
			for x := range p.GridPos.W {
				for y := range p.GridPos.H {
					at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
					if taken[at] != "" && taken[at] != p.Title {
						t.Errorf("%s lies on %s", p.Title, taken[at])
					}
					taken[at] = p.Title
				}
			}
			if p.Type == "row" {
				continue
			}
			if p.Description == "" || len(p.Targets) == 0 {
				t.Errorf("%s has no description or no query", p.Title)
			}
			for _, target := range p.Targets {
				queries++
				if target.Datasource.UID != "${datasource}" {
					t.Errorf("%s %s asks the data source %q rather than the variable's", p.Title, target.RefID, target.Datasource.UID)
				}
				expr := grafana.Replace(target.Expr)
				if strings.Contains(expr, "$") {
					t.Errorf("%s %s: an unknown variable in %s", p.Title, target.RefID, target.Expr)
				}
				if _, err := v.check(p.Title+" "+target.RefID, expr); err != nil {
					t.Error(err)
				}
			}
		}
	}
	look(d.Panels)
	if queries < 30 {
		t.Errorf("only %d queries were found", queries)
	}
}

func TestEveryRuleNamesWhatIsServedAndEveryAlertIsExplained(t *testing.T) {
	v := served(t)
	all := rules(t)
	v.add(t, all)
	docs, err := os.ReadFile(alertDocs)
	if err != nil {
		t.Fatal(err)
	}
	alerts := 0
	for _, r := range all {
		if r.Alert == "" {
			continue
		}
		alerts++
		if _, err := v.check(r.Alert, r.Expr); err != nil {
			t.Error(err)
		}
		if _, err := time.ParseDuration(r.For); err != nil {
			t.Errorf("%s: %v", r.Alert, err)
		}
		if s := r.Labels["severity"]; s != "critical" && s != "warning" {
			t.Errorf("%s has the severity %q", r.Alert, s)
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s does not say what is the matter", r.Alert)
		}
		if !strings.HasSuffix(r.Annotations["runbook_url"], "docs/monitoring.md#"+strings.ToLower(r.Alert)) {
			t.Errorf("%s: runbook_url is %s", r.Alert, r.Annotations["runbook_url"])
		}
		if !strings.Contains(string(docs), "\n### "+r.Alert+"\n") {
			t.Errorf("%s has no section in %s", r.Alert, alertDocs)
		}
	}
	if alerts < 10 {
		t.Errorf("only %d alerts were found", alerts)
	}
}

func TestAQueryThatNamesNothingIsFound(t *testing.T) {
	v := vocabulary{"a": {"x": {"1", "2"}, "y": nil}}
	for query, want := range map[string]string{
		`b`:                         "nothing serves or records b",
		`a{z="1"}`:                  "a has no label z",
		`a{x="3"}`:                  "no series of a matches",
		`a{x=~"3|4"}`:               "no series of a matches",
		`sum by (z) (a)`:            "which is no label",
		`a and on (z) a`:            "which is no label",
		`rate(a)`:                   "expected type range vector",
		`sum(a`:                     "unclosed left parenthesis",
		`sum(rate(b[5m])) / sum(a)`: "b",
	} {
		if _, err := v.check("query", query); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", query, err, want)
		}
	}
	for _, query := range []string{`a`, `sum by (x) (rate(a{y="9"}[5m]))`, `a{x=~"2|3",instance="i"}`, `sum by (instance) (a)`} {
		if _, err := v.check("query", query); err != nil {
			t.Error(err)
		}
	}
}
