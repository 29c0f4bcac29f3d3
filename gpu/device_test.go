package gpu

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestCacheTypesAreReadByTheNamesTheyPrint(t *testing.T) {
	for _, want := range []CacheType{CacheAuto, CacheF32, CacheF16, CacheQ8_0} {
		if got, err := ParseCacheType(want.String()); got != want || err != nil {
			t.Errorf("%v: %v, %v", want, got, err)
		}
	}
	for name, want := range map[string]string{"bf16": "auto, f32, f16, q8_0", "fp8": "q8_0", "fp8_e4m3": "q8_0"} {
		if _, err := ParseCacheType(name); err == nil || !strings.Contains(err.Error(), `"`+name+`"`) || !strings.Contains(err.Error(), want) {
			t.Error(err)
		}
	}
	if got := CacheType(9).String(); got != "CacheType(9)" {
		t.Error(got)
	}
}

func TestWhatWrapsAStickyErrorIsSticky(t *testing.T) {
	cause := errors.New("an illegal address")
	sticky := fmt.Errorf("layer 3: %w", &StickyError{cause})
	if !Sticky(sticky) || !errors.Is(sticky, cause) || sticky.Error() != "layer 3: an illegal address" {
		t.Error(sticky)
	}
	if Sticky(cause) || Sticky(nil) {
		t.Error("any error is sticky")
	}
}

func TestWhatWrapsAnUnsupportedErrorIsUnsupported(t *testing.T) {
	cause := errors.New("a type without kernels")
	err := fmt.Errorf("tensor: %w", &UnsupportedError{cause})
	if !Unsupported(err) || !errors.Is(err, cause) || err.Error() != "tensor: a type without kernels" {
		t.Error(err)
	}
	if Unsupported(cause) || Unsupported(nil) {
		t.Error("any error is one")
	}
}
