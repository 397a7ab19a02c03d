# A Pod needs a ConfigMap `switch` with `on: yes` in its namespace. One module for two modes: the input tells the mode.
package reading

import rego.v1

main := response if input.request

main := violations if input.review

is_on if data.kubernetes.configmaps[input.request.namespace]["switch"].data.on == "yes"

is_on if data.inventory.namespace[input.review.namespace].v1.ConfigMap["switch"].data.on == "yes"

response := {"uid": input.request.uid, "allowed": true} if is_on

response := {"uid": input.request.uid, "allowed": false, "status": {"message": "off"}} if not is_on

violations contains {"msg": "off"} if not is_on
