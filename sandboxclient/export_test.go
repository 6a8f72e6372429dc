package sandboxclient

import "time"

// SetCancelWait shortens the wait for an ending that does not come.
func (c *Client) SetCancelWait(d time.Duration) { c.cancelWait = d }
