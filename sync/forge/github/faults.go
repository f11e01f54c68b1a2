package github

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	gh "github.com/google/go-github/v62/github"

	"ichor.maesh.dev/ichor/sync/forge"
	"ichor.maesh.dev/ichor/sync/forge/rest"
)

// minRatePause when a limit is told without a time (GitHub: "wait for at least one minute").
const minRatePause = time.Minute

// fault gives an error its kind. go-github v62 knows 403 limits but not 429, so the status code is looked at too.
func fault(op string, err error) error {
	if err == nil {
		return nil
	}
	var (
		e       *forge.Error
		primary *gh.RateLimitError
		abuse   *gh.AbuseRateLimitError
		resp    *gh.ErrorResponse
	)
	out := &forge.Error{Op: op, Kind: forge.KindTransient, Err: err}
	switch {
	case errors.As(err, &e):
		return err
	case errors.Is(err, rest.ErrRedirect), rest.Untrusted(err):
		out.Kind = forge.KindHeld
	case errors.As(err, &primary):
		out.Kind, out.Until = forge.KindRate, primary.Rate.Reset.Time
	case errors.As(err, &abuse):
		out.Kind, out.Until = forge.KindRate, time.Now().Add(minRatePause)
		if abuse.RetryAfter != nil {
			out.Until = time.Now().Add(*abuse.RetryAfter)
		}
	case errors.As(err, &resp):
		out.Kind, out.Until = kindOf(resp)
		out.Err = answer(resp)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
	}
	return out
}

// answer is the text of a refused request without its URL's query.
func answer(r *gh.ErrorResponse) error {
	msg := r.Message
	for _, e := range r.Errors {
		msg += "; " + strings.TrimSpace(e.Field+" "+e.Message)
	}
	return fmt.Errorf("forge answers %d: %s", r.Response.StatusCode, msg)
}

func kindOf(r *gh.ErrorResponse) (forge.Kind, time.Time) {
	text := strings.ToLower(answer(r).Error())
	switch code := r.Response.StatusCode; {
	case code == http.StatusTooManyRequests,
		code == http.StatusForbidden && (r.Response.Header.Get("Retry-After") != "" || strings.Contains(text, "rate limit")):
		return forge.KindRate, rest.RetryAt(r.Response)
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return forge.KindAuth, time.Time{}
	case code == http.StatusNotFound, code == http.StatusGone, code >= 300 && code < 400,
		code == http.StatusUnavailableForLegalReasons:
		// GitHub says 404 where a credential may not see or do something, too.
		return forge.KindHeld, time.Time{}
	case code == http.StatusUnprocessableEntity && strings.Contains(text, "no commit found"):
		return forge.KindNoCommit, time.Time{}
	case code == http.StatusUnprocessableEntity && strings.Contains(text, "maximum number of statuses"):
		return forge.KindTooMany, time.Time{}
	case code == http.StatusRequestTimeout, code >= 500:
		return forge.KindTransient, time.Time{}
	}
	return forge.KindPermanent, time.Time{}
}
