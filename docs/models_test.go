package docs

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/troupe-llm/troupe/model"
)

func TestTheDocumentationListsEveryArchitecture(t *testing.T) {
	text, err := os.ReadFile("models.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range model.Architectures() {
		if row := fmt.Sprintf("| `%s` | %s |", name, model.ArchitectureModels(name)); !strings.Contains(string(text), row) {
			t.Errorf("models.md has no row %s", row)
		}
	}
}
