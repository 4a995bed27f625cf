module inflight.dev/e2e/pause

go 1.26.0
