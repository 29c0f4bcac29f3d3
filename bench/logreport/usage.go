package logreport

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/big"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Prices are what a million tokens cost, by model; "*" is for all others.
type Prices map[string]Price

// Price is for a million tokens each, in whatever currency. Exact decimals: bills must add up.
type Price struct{ Input, Cached, Output *big.Rat }

// ReadPrices reads a YAML or JSON table:
//
//	troupe-demo: {input: 0.10, cached_input: 0.02, output: 0.40}
//	"*":         {input: 1, output: 4}
//
// cached_input is for prompt tokens from the prefix cache, and the input's price when it is left out.
func ReadPrices(r io.Reader) (Prices, error) {
	var table map[string]map[string]yaml.Node
	d := yaml.NewDecoder(r)
	if err := d.Decode(&table); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("the table of prices is empty")
		}
		return nil, fmt.Errorf("the table of prices: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("the table of prices: something follows the table")
	}
	prices := Prices{}
	for model, columns := range table {
		var p Price
		for name, node := range columns {
			v, ok := price(&node)
			if !ok {
				return nil, fmt.Errorf("the table of prices, line %d: %s's %s is %q, but must be a number of at least 0, as in 0.25", node.Line, model, name, node.Value)
			}
			switch name {
			case "input":
				p.Input = v
			case "cached_input":
				p.Cached = v
			case "output":
				p.Output = v
			default:
				return nil, fmt.Errorf("the table of prices, line %d: %s has %q, but the columns are input, cached_input and output", node.Line, model, name)
			}
		}
		if p.Input == nil || p.Output == nil {
			return nil, fmt.Errorf("the table of prices: %s needs both input and output", model)
		}
		if p.Cached == nil {
			p.Cached = p.Input
		}
		prices[model] = p
	}
	return prices, nil
}

// price reads a decimal: digits and perhaps a point among them, at most 30 of them.
func price(node *yaml.Node) (*big.Rat, bool) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	digits := strings.Replace(node.Value, ".", "", 1)
	if node.Kind != yaml.ScalarNode || digits == "" || len(digits) > 30 || strings.Trim(digits, "0123456789") != "" {
		return nil, false
	}
	return new(big.Rat).SetString(node.Value)
}

// cost is what tokens cost; nil when their model has no price.
func (p Prices) cost(model string, u *usage) *big.Rat {
	price, ok := p[model]
	if !ok && model != other { // which are many models
		price, ok = p["*"]
	}
	if !ok {
		return nil
	}
	sum := new(big.Rat)
	for _, part := range []struct {
		tokens int64
		price  *big.Rat
	}{{u.Prompt - u.Cached, price.Input}, {u.Cached, price.Cached}, {u.Output, price.Output}} {
		sum.Add(sum, new(big.Rat).Mul(new(big.Rat).SetInt64(part.tokens), part.price))
	}
	return sum.Quo(sum, new(big.Rat).SetInt64(1e6))
}

// Usage is what each key used.
type Usage struct {
	Lines []UsageLine `json:"lines"`
	Total UsageLine   `json:"total"`
	// Unpriced are models that used tokens and have no price, when there are prices.
	Unpriced []string `json:"unpriced_models,omitempty"`
}

// UsageLine is one key's use of one model. Requests that their clients gave up, and those that failed,
// are apart: whether partial work is billed is the operator's to say.
type UsageLine struct {
	Key       string `json:"key"`
	Model     string `json:"model"`
	Completed Cost   `json:"completed"`
	Cancelled Cost   `json:"cancelled"`
	Failed    Cost   `json:"failed"`
}

// Cost is tokens and their price: a decimal with nine places, empty without one.
type Cost struct {
	usage
	Cost  string   `json:"cost,omitempty"`
	exact *big.Rat // nil: no price
}

func (c *Cost) add(o *Cost) {
	c.usage.add(&o.usage)
	if o.exact != nil {
		if c.exact == nil {
			c.exact = new(big.Rat)
		}
		c.exact.Add(c.exact, o.exact)
	}
}

func (c *Cost) write() {
	if c.exact != nil {
		c.Cost = c.exact.FloatString(9)
	}
}

// usage makes the bills.
func (c *Collector) usage() Usage {
	u := Usage{Lines: []UsageLine{}}
	for _, m := range c.bills.all() {
		line := UsageLine{Key: m.values[0], Model: m.values[1]}
		b := &m.of
		if line.Key == "" {
			line.Key = none
		}
		for _, part := range []struct {
			to   *Cost
			from *usage
		}{{&line.Completed, &b.completed}, {&line.Cancelled, &b.partial}, {&line.Failed, &b.broken}} {
			part.to.usage = *part.from
			if c.o.Prices != nil {
				if part.to.exact = c.o.Prices.cost(line.Model, part.from); part.to.exact == nil && !slices.Contains(u.Unpriced, line.Model) {
					u.Unpriced = append(u.Unpriced, line.Model)
				}
			}
		}
		u.Lines = append(u.Lines, line)
	}
	slices.Sort(u.Unpriced)
	slices.SortFunc(u.Lines, func(a, b UsageLine) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.Model, b.Model))
	})
	for i := range u.Lines {
		l := &u.Lines[i]
		u.Total.Completed.add(&l.Completed)
		u.Total.Cancelled.add(&l.Cancelled)
		u.Total.Failed.add(&l.Failed)
		for _, c := range []*Cost{&l.Completed, &l.Cancelled, &l.Failed} {
			c.write()
		}
	}
	for _, c := range []*Cost{&u.Total.Completed, &u.Total.Cancelled, &u.Total.Failed} {
		c.write()
	}
	return u
}
