# Services must have a type that the settings allow. The policy has the form of OPA's admission policies: the entrypoint
# is a whole AdmissionReview, the request is `input.request`, the settings are `data`.
package servicetypes

import rego.v1

main := {
	"apiVersion": "admission.k8s.io/v1",
	"kind": "AdmissionReview",
	"response": response,
}

default response := {"uid": "", "allowed": true}

response := {"uid": input.request.uid, "allowed": true} if count(denials) == 0

response := {
	"uid": input.request.uid,
	"allowed": false,
	"status": {"message": concat("; ", sort(denials)), "code": 403},
} if {
	count(denials) > 0
}

default allowed_types := {"ClusterIP"}

allowed_types := {type | some type in data.allowedTypes} if data.allowedTypes

# The API server sets the default type before it calls webhooks; an absent type is possible only without an API server.
type := object.get(input.request.object.spec, "type", "ClusterIP")

denials contains message if {
	input.request.operation in {"CREATE", "UPDATE"}
	not type in allowed_types
	message := sprintf("a Service of type %s is not allowed here, only %s", [type, concat(", ", sort(allowed_types))])
}

denials contains message if {
	input.request.operation in {"CREATE", "UPDATE"}
	some address in object.get(input.request.object.spec, "externalIPs", [])
	message := sprintf("the external address %s is not allowed: anybody could take over another's traffic by it", [address])
}
