package gitlab

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// perPage is the most that GitLab gives at once; maxPages ends a list that never does.
const (
	perPage  = 100
	maxPages = 200
)

// filters are what is asked for; all else in a query turns the page, and is the server's to say.
var filters = map[string]bool{"state": true, "target_branch": true, "order_by": true, "sort": true, "per_page": true}

// next gives the query of the page after this one, nil after the last. GitLab names it in X-Next-Page (offset) or only in
// Link (keyset, by a cursor); where a proxy has dropped both, a full page is followed by another. Of a link nothing but
// its query is taken: the host and path in it are those of the server's own configuration, which need not be ours.
func next(q url.Values, h http.Header, got, pages int) (url.Values, error) {
	if pages >= maxPages {
		return nil, errors.New("the list has no end")
	}
	out := url.Values{}
	for k, v := range q {
		out[k] = v
	}
	if pages := h.Values("X-Next-Page"); len(pages) > 0 && (pages[0] != "" || linked(h) == nil) {
		if pages[0] == "" {
			return nil, nil
		}
		out.Set("page", pages[0])
		return out, nil
	}
	if len(h.Values("Link")) > 0 {
		link := linked(h)
		if link == nil {
			return nil, nil
		}
		for k, v := range link {
			if !filters[k] {
				out[k] = v
			}
		}
		return out, nil
	}
	if got < perPage {
		return nil, nil
	}
	n, _ := strconv.Atoi(q.Get("page"))
	out.Set("page", strconv.Itoa(max(n, 1)+1))
	return out, nil
}

// linked gives the query of the link with rel="next", nil where there is none.
func linked(h http.Header) url.Values {
	for _, part := range strings.Split(strings.Join(h.Values("Link"), ","), ",") {
		target, params, ok := strings.Cut(part, ";")
		if !ok || !strings.Contains(params, `rel="next"`) {
			continue
		}
		u, err := url.Parse(strings.Trim(strings.TrimSpace(target), "<>"))
		if err != nil {
			return nil
		}
		return u.Query()
	}
	return nil
}
