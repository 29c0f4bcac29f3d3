package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// healthCmd asks a server how it is. It is what a container's health check runs where there is no
// curl.
type healthCmd struct {
	URL      string        `arg:"" optional:"" placeholder:"URL" default:"http://127.0.0.1:8000" help:"Where the server is. Default: ${default}."`
	Timeout  time.Duration `default:"5s" placeholder:"DURATION" help:"How long the server may take to answer. Default: ${default}."`
	Insecure bool          `help:"Take any certificate: for a server that is asked by an address which its certificate does not name."`
}

// Help implements kong.HelpProvider.
func (*healthCmd) Help() string {
	return `Asks the server's /health, which needs no API key. Examples:

  troupe health
  troupe health http://127.0.0.1:9000 --timeout 1s
  troupe health https://127.0.0.1:8443 --insecure

Exit status: 0 when the server is well, or serves with a part of its devices, which it then says; 1 when it is not
(it is starting, draining, or has no device) or does not answer, with the reason; 2 when the flags make no sense.`
}

// address is the URL of the server's /health.
func (c *healthCmd) address() (string, error) {
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return "", fmt.Errorf("%q is not a server's URL: write http://HOST:PORT or https://HOST:PORT", c.URL)
	}
	if !strings.HasSuffix(u.Path, "/health") {
		u = u.JoinPath("health")
	}
	return u.String(), nil
}

// Validate implements kong's interface.
func (c *healthCmd) Validate() error {
	if c.Timeout <= 0 || c.Timeout > longest {
		return fmt.Errorf("--timeout is %v, but must be above 0 and at most %v", c.Timeout, longest)
	}
	_, err := c.address()
	return err
}

// Run implements the command.
func (c *healthCmd) Run(stdout io.Writer) error {
	address, err := c.address()
	if err != nil {
		return usageError{err}
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: c.Insecure}
	transport.DisableKeepAlives = true
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // a page to log in at is no sign of health
	}}
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return usageError{err}
	}
	response, err := client.Do(request)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s did not answer within %v: it may still be loading its model", address, c.Timeout)
	}
	if err != nil {
		var wrapped *url.Error // its message repeats the URL
		if errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return fmt.Errorf("%s cannot be asked: %w", address, err)
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if response.StatusCode == http.StatusOK {
		var part struct {
			Message string `json:"message"`
		}
		if json.Unmarshal(body, &part) == nil && part.Message != "" {
			_, err = fmt.Fprintf(stdout, "healthy, but for a part: %.500s\n", part.Message)
		} else {
			_, err = fmt.Fprintln(stdout, "healthy")
		}
		return err
	}
	var refusal struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &refusal) != nil || refusal.Error.Message == "" {
		return fmt.Errorf("%s answered %s", address, response.Status)
	}
	return fmt.Errorf("%s is unhealthy: %.500s", address, refusal.Error.Message)
}
