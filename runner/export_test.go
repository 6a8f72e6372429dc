package runner

import "time"

// HastenPreload shortens the bound on a module's import.
func HastenPreload(d time.Duration) { preloadTimeout = d }
