package forge

import (
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"time"
)

// obj is a JSON object.
type obj = map[string]any

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func stampOrNil(t *time.Time) any {
	if t == nil {
		return nil
	}
	return stamp(*t)
}

func nodeID(kind string, id any) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%s:%v", kind, id))
}

// userJSON is "simple-user".
func (f *Forge) userJSON(login string) obj {
	h := fnv.New32a()
	_, _ = h.Write([]byte(login))
	u := f.url + "/api/v3/users/" + login
	return obj{
		"login": login, "id": int64(h.Sum32()), "node_id": nodeID("User", login), "avatar_url": f.url + "/avatars/" + login, "gravatar_id": "",
		"url": u, "html_url": f.url + "/" + login, "followers_url": u + "/followers", "following_url": u + "/following{/other_user}",
		"gists_url": u + "/gists{/gist_id}", "starred_url": u + "/starred{/owner}{/repo}", "subscriptions_url": u + "/subscriptions",
		"organizations_url": u + "/orgs", "repos_url": u + "/repos", "events_url": u + "/events{/privacy}",
		"received_events_url": u + "/received_events", "type": "User", "site_admin": false,
	}
}

func (f *Forge) repoURL(r *repository) string {
	return f.url + "/api/v3/repos/" + r.fullName()
}

func (f *Forge) htmlURL(r *repository) string { return f.url + "/" + r.fullName() }

// repositoryJSON is "repository", and "minimal-repository" with it. mu is held.
func (f *Forge) repositoryJSON(r *repository) obj {
	u, web := f.repoURL(r), f.htmlURL(r)
	o := obj{
		"id": r.id(), "node_id": nodeID("Repository", r.id()), "name": r.name(), "full_name": r.fullName(), "owner": f.userJSON(r.Owner),
		"private": !r.Public, "visibility": map[bool]string{true: "public", false: "private"}[r.Public], "html_url": web, "description": nil,
		"fork": r.Fork, "url": u, "clone_url": web + ".git", "git_url": "git:" + web[len("http:"):] + ".git", "ssh_url": "git@localhost:" + r.fullName() + ".git",
		"svn_url": web, "mirror_url": nil, "homepage": nil, "language": nil, "license": nil, "default_branch": r.DefaultBranch,
		"forks": 0, "forks_count": 0, "stargazers_count": 0, "watchers": 0, "watchers_count": 0, "size": 0, "open_issues": 0, "open_issues_count": 0,
		"is_template": false, "topics": []string{}, "has_issues": false, "has_projects": false, "has_wiki": false, "has_pages": false,
		"has_downloads": false, "has_discussions": false, "archived": false, "disabled": false, "web_commit_signoff_required": false,
		"pushed_at": stamp(r.Pushed), "created_at": stamp(r.Created), "updated_at": stamp(r.Pushed),
	}
	for _, k := range []string{
		"assignees_url", "blobs_url", "branches_url", "collaborators_url", "comments_url", "commits_url", "compare_url", "contents_url",
		"contributors_url", "deployments_url", "downloads_url", "events_url", "forks_url", "git_commits_url", "git_refs_url", "git_tags_url",
		"hooks_url", "issue_comment_url", "issue_events_url", "issues_url", "keys_url", "labels_url", "languages_url", "merges_url",
		"milestones_url", "notifications_url", "pulls_url", "releases_url", "stargazers_url", "statuses_url", "subscribers_url",
		"subscription_url", "tags_url", "teams_url", "trees_url", "archive_url",
	} {
		o[k] = u + "/" + urlForms[k]
	}
	return o
}

// urlForms are the ends of the URL templates that a repository lists.
var urlForms = map[string]string{
	"assignees_url": "assignees{/user}", "blobs_url": "git/blobs{/sha}", "branches_url": "branches{/branch}",
	"collaborators_url": "collaborators{/collaborator}", "comments_url": "comments{/number}", "commits_url": "commits{/sha}",
	"compare_url": "compare/{base}...{head}", "contents_url": "contents/{+path}", "contributors_url": "contributors", "deployments_url": "deployments",
	"downloads_url": "downloads", "events_url": "events", "forks_url": "forks", "git_commits_url": "git/commits{/sha}", "git_refs_url": "git/refs{/sha}",
	"git_tags_url": "git/tags{/sha}", "hooks_url": "hooks", "issue_comment_url": "issues/comments{/number}", "issue_events_url": "issues/events{/number}",
	"issues_url": "issues{/number}", "keys_url": "keys{/key_id}", "labels_url": "labels{/name}", "languages_url": "languages", "merges_url": "merges",
	"milestones_url": "milestones{/number}", "notifications_url": "notifications{?since,all,participating}", "pulls_url": "pulls{/number}",
	"releases_url": "releases{/id}", "stargazers_url": "stargazers", "statuses_url": "statuses/{sha}", "subscribers_url": "subscribers",
	"subscription_url": "subscription", "tags_url": "tags", "teams_url": "teams", "trees_url": "git/trees{/sha}", "archive_url": "{archive_format}{/ref}",
}

// pullJSON is "pull-request-simple". mu is held.
func (f *Forge) pullJSON(p *pull) obj {
	u := fmt.Sprintf("%s/pulls/%d", f.repoURL(f.main), p.Number)
	web := f.pullURL(p)
	issue := fmt.Sprintf("%s/issues/%d", f.repoURL(f.main), p.Number)
	statuses := f.repoURL(f.main) + "/statuses/" + p.HeadSHA
	link := func(s string) obj { return obj{"href": s} }
	var head any
	for _, r := range f.st.Repos {
		if r.id() == p.HeadRepo {
			head = f.repositoryJSON(r)
		}
	}
	body, mergeCommit := any(nil), any(nil)
	if p.Body != "" {
		body = p.Body
	}
	if p.MergeCommit != "" {
		mergeCommit = p.MergeCommit
	}
	association := "CONTRIBUTOR"
	if p.HeadOwner == f.main.Owner {
		association = "MEMBER"
	}
	return obj{
		"url": u, "id": p.ID, "node_id": nodeID("PullRequest", p.ID), "html_url": web, "diff_url": web + ".diff", "patch_url": web + ".patch",
		"issue_url": issue, "commits_url": u + "/commits", "review_comments_url": u + "/comments", "review_comment_url": f.repoURL(f.main) + "/pulls/comments{/number}",
		"comments_url": issue + "/comments", "statuses_url": statuses, "number": p.Number, "state": p.State, "locked": false, "title": p.Title,
		"user": f.userJSON(p.Author), "body": body, "labels": []obj{}, "milestone": nil, "active_lock_reason": nil, "created_at": stamp(p.Created),
		"updated_at": stamp(p.Updated), "closed_at": stampOrNil(p.Closed), "merged_at": stampOrNil(p.Merged), "merge_commit_sha": mergeCommit,
		"assignee": nil, "assignees": []obj{}, "requested_reviewers": []obj{}, "requested_teams": []obj{}, "draft": p.Draft,
		"author_association": association, "auto_merge": nil,
		"head": obj{"label": p.HeadOwner + ":" + p.Head, "ref": p.Head, "sha": p.HeadSHA, "user": f.userJSON(p.HeadOwner), "repo": head},
		"base": obj{"label": f.main.Owner + ":" + p.Base, "ref": p.Base, "sha": p.BaseSHA, "user": f.userJSON(f.main.Owner), "repo": f.repositoryJSON(f.main)},
		"_links": obj{
			"self": link(u), "html": link(web), "issue": link(issue), "comments": link(issue + "/comments"), "review_comments": link(u + "/comments"),
			"review_comment": link(f.repoURL(f.main) + "/pulls/comments{/number}"), "commits": link(u + "/commits"), "statuses": link(statuses),
		},
	}
}

// fullPullJSON is "pull-request". mu is held.
func (f *Forge) fullPullJSON(p *pull) obj {
	o := f.pullJSON(p)
	o["merged"], o["merged_by"] = p.Merged != nil, nil
	if p.MergedBy != "" {
		o["merged_by"] = f.userJSON(p.MergedBy)
	}
	o["mergeable"], o["mergeable_state"], o["rebaseable"] = nil, "unknown", nil
	if p.Mergeable != nil && p.State == "open" {
		o["mergeable"], o["rebaseable"], o["mergeable_state"] = *p.Mergeable, false, "dirty"
		if *p.Mergeable {
			o["mergeable_state"] = map[bool]string{true: "draft", false: "clean"}[p.Draft]
		}
	}
	for _, k := range []string{"comments", "review_comments"} {
		o[k] = 0
	}
	o["maintainer_can_modify"] = false
	return o
}

// statusJSON is "status".
func (f *Forge) statusJSON(r *repository, s Status) obj {
	o := f.simpleStatusJSON(r, s)
	o["creator"] = f.userJSON(s.Creator)
	return o
}

// simpleStatusJSON is "simple-commit-status".
func (f *Forge) simpleStatusJSON(r *repository, s Status) obj {
	var target, description any
	if s.TargetURL != "" {
		target = s.TargetURL
	}
	if s.Description != "" {
		description = s.Description
	}
	return obj{
		"url": f.repoURL(r) + "/statuses/" + s.SHA, "avatar_url": f.url + "/avatars/" + s.Creator, "id": s.ID, "node_id": nodeID("StatusContext", s.ID),
		"state": s.State, "description": description, "target_url": target, "context": s.Context, "created_at": stamp(s.Created), "updated_at": stamp(s.Created),
	}
}
