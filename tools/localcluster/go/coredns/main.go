// CoreDNS with only the plugins a cluster's DNS needs: importing all of them makes the build five times as long.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() {
	// The order is the order in which plugins see a query.
	dnsserver.Directives = []string{"health", "ready", "errors", "cache", "kubernetes", "forward"}
	coremain.Run()
}
