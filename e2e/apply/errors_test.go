package apply_test

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"ichor.maesh.dev/ichor/apply/observe"
	"ichor.maesh.dev/ichor/apply/plan"
)

// errInvalid is what a node answers to a configuration that it does not take.
var errInvalid = status.Error(codes.InvalidArgument, "1 error occurred:\n\t* not today\n\n")

func observeMachine(name, endpoint string) observe.Machine {
	return observe.Machine{Name: name, Role: plan.RoleControlPlane, Endpoint: endpoint}
}
