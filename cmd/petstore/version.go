package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/spf13/cobra"

	"petstore/internal/api"
)

// release is the version of a release build, set by the linker. Other builds use
// the commit of the build info.
var release string

func (p *program) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of the program and of the API",
		Example: "  petstore version",
		Args:    noArguments,
		Run:     func(*cobra.Command, []string) { fmt.Fprint(p.stdout, versionLine()) },
	}
}

// versionLine returns the output of version and --version.
func versionLine() string {
	return fmt.Sprintf("petstore %s (API %s, %s %s/%s)\n", version(), api.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// version returns the version of the program. Reading it takes 10 µs, and each request has it.
var version = sync.OnceValue(func() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			return setting.Value
		}
	}
	return info.Main.Version
})
