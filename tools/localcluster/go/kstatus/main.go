// Kstatus says how tools that wait for any resource, such as Flux, see objects: of each object of the JSON list in its
// input it prints the status and the message, as a JSON list of pairs.
package main

import (
	"encoding/json"
	"io"
	"log"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func main() {
	input, err := io.ReadAll(os.Stdin)
	if err != nil {
		log.Fatal(err)
	}
	var objects []any
	// Whole numbers become int64, as kstatus expects.
	if err := utiljson.Unmarshal(input, &objects); err != nil {
		log.Fatal(err)
	}
	seen := [][2]string{}
	for _, object := range objects {
		result, err := status.Compute(&unstructured.Unstructured{Object: object.(map[string]any)})
		if err != nil {
			log.Fatal(err)
		}
		seen = append(seen, [2]string{result.Status.String(), result.Message})
	}
	if err := json.NewEncoder(os.Stdout).Encode(seen); err != nil {
		log.Fatal(err)
	}
}
