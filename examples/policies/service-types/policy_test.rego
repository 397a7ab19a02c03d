package servicetypes_test

import rego.v1

import data.servicetypes

review(operation, spec) := {"request": {"uid": "u", "operation": operation, "object": {"spec": spec}}}

test_a_type_that_is_allowed if {
	servicetypes.main.response == {"uid": "u", "allowed": true} with input as review("CREATE", {"type": "NodePort"})
		with data.allowedTypes as ["ClusterIP", "NodePort"]
}

test_no_type_is_cluster_ip if {
	servicetypes.main.response.allowed with input as review("CREATE", {})
}

test_a_type_that_is_not_allowed if {
	response := servicetypes.main.response with input as review("UPDATE", {"type": "LoadBalancer"})
		with data.allowedTypes as ["NodePort", "ClusterIP"]
	not response.allowed
	response.status.message == "a Service of type LoadBalancer is not allowed here, only ClusterIP, NodePort"
}

test_external_addresses if {
	response := servicetypes.main.response with input as review("CREATE", {"externalIPs": ["192.0.2.1"]})
	not response.allowed
	contains(response.status.message, "192.0.2.1")
}

test_a_deletion_is_allowed if {
	servicetypes.main.response.allowed with input as {"request": {"uid": "u", "operation": "DELETE", "object": null}}
}
