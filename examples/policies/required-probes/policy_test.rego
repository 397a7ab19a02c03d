package requiredprobes_test

import rego.v1

import data.requiredprobes

review(kind, spec) := {
	"parameters": {"probes": ["livenessProbe", "readinessProbe"]},
	"review": {"kind": {"kind": kind}, "object": {"metadata": {"name": "shop"}, "spec": spec}},
}

probe := {"httpGet": {"path": "/", "port": 80}}

test_all_probes if {
	container := {"name": "web", "livenessProbe": probe, "readinessProbe": probe}
	requiredprobes.violation == set() with input as review("Pod", {"containers": [container]})
}

test_a_missing_probe if {
	containers := [{"name": "web", "livenessProbe": probe, "readinessProbe": {}}]
	violations := requiredprobes.violation with input as review("Deployment", {"template": {"spec": {"containers": containers}}})
	violations == {{"msg": "container web of Deployment shop has no readinessProbe"}}
}
