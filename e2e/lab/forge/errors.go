package forge

import "net/http"

// Error is an answer of the API that is not a success. Callers test Status.
type Error struct {
	// Status is the HTTP status code.
	Status int
	// Message as GitHub words it.
	Message string
	// Details of a 422: resource, field, code, message.
	Details []map[string]any
	// Doc is the documentation URL; go-github tells the secondary limit by it.
	Doc string
}

// Error gives the message, and that of the first detail.
func (e *Error) Error() string {
	if len(e.Details) > 0 {
		if m, ok := e.Details[0]["message"].(string); ok {
			return e.Message + ": " + m
		}
		if field, ok := e.Details[0]["field"].(string); ok {
			return e.Message + ": " + field + " is " + e.Details[0]["code"].(string)
		}
	}
	return e.Message
}

func notFound() *Error { return &Error{Status: http.StatusNotFound, Message: "Not Found"} }

// invalid is a 422 with one of GitHub's codes: invalid, missing_field.
func invalid(resource, field, code string) *Error {
	return &Error{
		Status: http.StatusUnprocessableEntity, Message: "Validation Failed",
		Details: []map[string]any{{"resource": resource, "field": field, "code": code}},
	}
}

// custom is a 422 with a sentence.
func custom(resource, field, message string) *Error {
	d := map[string]any{"resource": resource, "code": "custom", "message": message}
	if field != "" {
		d["field"] = field
	}
	return &Error{Status: http.StatusUnprocessableEntity, Message: "Validation Failed", Details: []map[string]any{d}}
}
