//go:build tools

// Package kwok names the command that this module pins.
package kwok

import _ "sigs.k8s.io/kwok/cmd/kwok"
