package kube

import (
	"encoding/json"
	"time"
)

// meta is the part of an object's metadata that the lab looks at.
type meta struct {
	Name, Namespace, UID       string
	ResourceVersion            string
	Labels, Annotations        map[string]string
	DeletionTimestamp          string
	DeletionGracePeriodSeconds *int64
}

// object is anything with metadata.
type object struct{ Metadata meta }

// owner makes a Node the owner of another object.
func (o object) owner() map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "Node", "name": o.Metadata.Name, "uid": o.Metadata.UID}
}

// stamp is now, as Kubernetes writes times.
func stamp() string { return time.Now().UTC().Format(time.RFC3339) }

// pod is the part of a Pod that a kubelet needs here.
type pod struct {
	Metadata meta
	Spec     struct {
		Containers, InitContainers []struct{ Name, Image string }
		RestartPolicy              string
		HostNetwork                bool
	}
	Status struct {
		Phase             string
		StartTime         string
		PodIP             string
		ContainerStatuses []struct {
			ContainerID  string
			RestartCount int
		}
		Conditions []podCondition
	}
}

type podCondition struct {
	Type               string `json:"type"`
	Status             string `json:"status"`
	LastTransitionTime string `json:"lastTransitionTime,omitempty"`
	Reason             string `json:"reason,omitempty"`
}

func (p pod) path() string {
	return "/api/v1/namespaces/" + p.Metadata.Namespace + "/pods/" + p.Metadata.Name
}

// ready says whether the API server has the pod as ready.
func (p pod) ready() bool {
	for _, c := range p.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return false
}

// mirrored says whether the pod stands for a static pod.
func (p pod) mirrored() bool { return p.Metadata.Annotations[mirrorAnnotation] != "" }

func readPod(obj json.RawMessage) (pod, error) {
	var p pod
	err := json.Unmarshal(obj, &p)
	return p, err
}
