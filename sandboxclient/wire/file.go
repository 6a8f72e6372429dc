package wire

// FileOpName names what is done with a file.
type FileOpName string

// The operations on files.
const (
	// FileWrite replaces a file, or makes it: its content is the exec's stdin. The
	// end of stdin says that the content is whole; without it nothing is replaced.
	FileWrite FileOpName = "write"
	// FileRead copies a file to the exec's stdout.
	FileRead FileOpName = "read"
)

const (
	// MaxFilePath bounds a file's path, in bytes.
	MaxFilePath = 4096
	// MaxFileMode is the largest mode: all permission bits.
	MaxFileMode = 0o777
	// DefaultFileMode is what a written file gets when none is asked for.
	DefaultFileMode = 0o644
)

const (
	// FieldFilePath names the path of a FileOp in an [Error].
	FieldFilePath = "program.file.path"
	// ReasonNoSpace is the Reason of an [Error] for a workspace that is full.
	ReasonNoSpace = "no_space"
)

// FileOp moves one file to or from a sandbox, as an exec. It exits with 0 and a
// [FileReport], or with 1 and a [FileFailure].
type FileOp struct {
	Op FileOpName `json:"op"`
	// Path is relative to the workspace, or absolute: 1 to MaxFilePath bytes, none
	// of them zero.
	Path string `json:"path"`
	// Mode has the permission bits of a written file; 0 is DefaultFileMode.
	Mode uint32 `json:"mode,omitempty"`
}

// FileReport is the line of JSON, on stdout of a write and on stderr of a read,
// that says what was moved.
type FileReport struct {
	Size   int64  `json:"size"`           // in bytes
	SHA256 string `json:"sha256"`         // in hexadecimal
	Mode   uint32 `json:"mode,omitempty"` // permission bits; of a read
}

// FileFailure is the line of JSON on stderr that says why a file was not moved.
type FileFailure struct {
	Error *Error `json:"error"`
}
