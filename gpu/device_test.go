package gpu

import (
	"strings"
	"testing"
)

func TestCacheTypesAreReadByTheNamesTheyPrint(t *testing.T) {
	for _, want := range []CacheType{CacheAuto, CacheF32, CacheF16} {
		if got, err := ParseCacheType(want.String()); got != want || err != nil {
			t.Errorf("%v: %v, %v", want, got, err)
		}
	}
	if _, err := ParseCacheType("fp8"); err == nil || !strings.Contains(err.Error(), `"fp8"`) || !strings.Contains(err.Error(), "f16") {
		t.Error(err)
	}
	if got := CacheType(9).String(); got != "CacheType(9)" {
		t.Error(got)
	}
}
