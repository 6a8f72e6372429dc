package sandboxclient

import "time"

// SetCancelWait shortens the wait for an ending that does not come.
func (c *Client) SetCancelWait(d time.Duration) { c.cancelWait = d }

// OutputWindow is the credit for each of a program's outputs, in bytes.
const OutputWindow = outputWindow

// ResumeSpread is over how long programs spread their first attempt to come back.
const ResumeSpread = resumeSpread

// SetResumeWindow shortens the time for coming back without a deadline.
func (c *Client) SetResumeWindow(d time.Duration) { c.resumeWindow = d }

// SetStartDoubt shortens the time for which a program may not be known yet.
func (c *Client) SetStartDoubt(d time.Duration) { c.startDoubt = d }
