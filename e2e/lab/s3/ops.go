package s3

import (
	"net/http"
	"strings"
)

// operations are S3's names for the requests that the store tells apart.
var operations = []string{
	"ListBuckets", "CreateBucket", "DeleteBucket", "HeadBucket", "BucketSettings",
	"ListObjects", "ListObjectVersions", "ListMultipartUploads", "DeleteObjects",
	"PutObject", "CopyObject", "GetObject", "HeadObject", "DeleteObject", "ObjectSettings",
	"CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload", "AbortMultipartUpload", "ListParts",
}

// operation gives a request S3's name for it, by method, path and sub-resource. Addresses are in
// path style: /BUCKET/KEY.
func operation(r *http.Request) string {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	q := r.URL.Query()
	switch {
	case bucket == "":
		return "ListBuckets"
	case key == "":
		return bucketOperation(r.Method, q.Has)
	case q.Has("uploadId"):
		return map[string]string{
			http.MethodPut: "UploadPart", http.MethodPost: "CompleteMultipartUpload",
			http.MethodDelete: "AbortMultipartUpload", http.MethodGet: "ListParts",
		}[r.Method]
	case r.Method == http.MethodPost && q.Has("uploads"):
		return "CreateMultipartUpload"
	case hasAny(q.Has, "acl", "tagging", "retention", "legal-hold", "attributes", "restore", "select"):
		return "ObjectSettings"
	case r.Method == http.MethodPut && r.Header.Get("X-Amz-Copy-Source") != "":
		return "CopyObject"
	}
	return map[string]string{
		http.MethodPut: "PutObject", http.MethodGet: "GetObject", http.MethodHead: "HeadObject", http.MethodDelete: "DeleteObject",
	}[r.Method]
}

func bucketOperation(method string, has func(string) bool) string {
	switch {
	case method == http.MethodPost && has("delete"):
		return "DeleteObjects"
	case method == http.MethodGet && has("uploads"):
		return "ListMultipartUploads"
	case method == http.MethodGet && has("versions"):
		return "ListObjectVersions"
	case hasAny(has, "acl", "policy", "location", "versioning", "object-lock", "lifecycle", "tagging", "cors", "encryption", "ownershipControls", "replication", "notification"):
		return "BucketSettings"
	}
	return map[string]string{
		http.MethodGet: "ListObjects", http.MethodHead: "HeadBucket", http.MethodPut: "CreateBucket", http.MethodDelete: "DeleteBucket",
	}[method]
}

func hasAny(has func(string) bool, names ...string) bool {
	for _, n := range names {
		if has(n) {
			return true
		}
	}
	return false
}
