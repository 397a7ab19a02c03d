# Containers must have the probes that the settings name. The policy has the form of Gatekeeper's policies: `violation`
# over `input.review` and `input.parameters`.
package requiredprobes

import rego.v1

violation contains {"msg": message} if {
	some container in pod.containers
	some probe in input.parameters.probes
	not has(container, probe)
	message := sprintf("container %s of %s %s has no %s", [
		container.name,
		input.review.kind.kind,
		object.get(input.review.object.metadata, "name", "without a name"),
		probe,
	])
}

# An empty probe counts as missing.
has(container, probe) if count(object.get(container, probe, {})) > 0

pod := input.review.object.spec if input.review.kind.kind == "Pod"

pod := input.review.object.spec.template.spec if input.review.kind.kind != "Pod"
