// Package local provides sandboxes on this machine, without a cluster: the
// embedded default, with the semantics of the real thing.
//
// A sandbox is one process with the runner in it. The runtime runsc isolates it
// with gVisor; the runtime process isolates nothing, says so, and is for
// machines where nothing else works. Each pool keeps warm sandboxes: started,
// waiting to be taken, destroyed after use.
//
// No sandbox outlives its broker. Each is started from a thread that lives as
// long as the broker does, and dies with it (PR_SET_PDEATHSIG), however the
// broker ends. What a killed broker leaves are files and control groups; they
// are recorded before they are made, and the next start removes them.
package local
