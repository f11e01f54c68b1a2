package forge

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Limits of the API for one user. Zero is GitHub's own, below zero is none.
type Limits struct {
	// PerHour requests; an authenticated 304 does not count. GitHub: 5000 (60 without a token).
	PerHour int
	// WritesPerMinute and WritesPerHour of content (statuses, pull requests). GitHub: 80 and 500.
	WritesPerMinute int
	WritesPerHour   int
}

const (
	docPrimary   = "https://docs.github.com/rest/overview/rate-limits-for-the-rest-api"
	docSecondary = "https://docs.github.com/rest/overview/rate-limits-for-the-rest-api#about-secondary-rate-limits"
	anonymous    = 60
)

type limiter struct {
	mu     sync.Mutex
	max    Limits
	core   map[string]*window
	writes map[string][]time.Time
}

// window of the primary limit.
type window struct {
	used  int
	reset time.Time
}

func newLimiter(l Limits) limiter {
	l.PerHour, l.WritesPerMinute, l.WritesPerHour = cmp.Or(l.PerHour, 5000), cmp.Or(l.WritesPerMinute, 80), cmp.Or(l.WritesPerHour, 500)
	return limiter{max: l, core: map[string]*window{}, writes: map[string][]time.Time{}}
}

// limit of a user; "" is nobody.
func (l *limiter) limit(login string) int {
	if login == "" && l.max.PerHour > 0 {
		return min(anonymous, l.max.PerHour)
	}
	return l.max.PerHour
}

// take counts one request and sets the headers. It gives the refusal when the limit is reached.
func (l *limiter) take(login string, now time.Time, h http.Header) *Error {
	l.mu.Lock()
	defer l.mu.Unlock()
	w, limit := l.window(login, now), l.limit(login)
	if limit < 0 {
		return nil
	}
	refused := w.used >= limit
	if !refused {
		w.used++
	}
	w.headers(limit, h)
	if refused {
		return &Error{Status: http.StatusForbidden, Message: fmt.Sprintf("API rate limit exceeded for user %s.", cmp.Or(login, "without a token")), Doc: docPrimary}
	}
	return nil
}

// giveBack takes a request off the count: it ended in a 304.
func (l *limiter) giveBack(login string, now time.Time, h http.Header) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w, limit := l.window(login, now), l.limit(login)
	if limit < 0 || login == "" || w.used == 0 {
		return
	}
	w.used--
	w.headers(limit, h)
}

func (l *limiter) window(login string, now time.Time) *window {
	w := l.core[login]
	if w == nil || !now.Before(w.reset) {
		w = &window{reset: now.Add(time.Hour)}
		l.core[login] = w
	}
	return w
}

func (w *window) headers(limit int, h http.Header) {
	h.Set("X-RateLimit-Limit", strconv.Itoa(limit))
	h.Set("X-RateLimit-Remaining", strconv.Itoa(max(0, limit-w.used)))
	h.Set("X-RateLimit-Used", strconv.Itoa(w.used))
	h.Set("X-RateLimit-Reset", strconv.FormatInt(w.reset.Unix(), 10))
	h.Set("X-RateLimit-Resource", "core")
}

// write counts one content-making request and gives the refusal of the secondary limit.
func (l *limiter) write(login string, now time.Time, h http.Header) *Error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var hour []time.Time
	minute := 0
	for _, t := range l.writes[login] {
		if now.Sub(t) < time.Hour {
			hour = append(hour, t)
		}
		if now.Sub(t) < time.Minute {
			minute++
		}
	}
	l.writes[login] = hour
	if over(minute, l.max.WritesPerMinute) || over(len(hour), l.max.WritesPerHour) {
		h.Set("Retry-After", "60")
		return secondary()
	}
	l.writes[login] = append(hour, now)
	return nil
}

func over(n, limit int) bool { return limit > 0 && n >= limit }

func secondary() *Error {
	return &Error{
		Status: http.StatusForbidden, Doc: docSecondary,
		Message: "You have exceeded a secondary rate limit. Please wait a few minutes before you try again.",
	}
}
