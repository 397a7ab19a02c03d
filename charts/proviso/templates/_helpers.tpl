{{- define "proviso.labels" -}}
app.kubernetes.io/name: operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: proviso
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "proviso.selector" -}}
app.kubernetes.io/name: operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/*
The tolerations of the operator: those of the values, and short ones of the taints of lost nodes, unless the values have their own.
Kubernetes would wait for 300 s. An empty key or effect matches all.
*/}}
{{- define "proviso.tolerations" -}}
{{- $own := default list .Values.operator.tolerations -}}
{{- $tolerations := $own -}}
{{- range $taint := list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable" -}}
{{- $isTolerated := false -}}
{{- range $own -}}
{{- if and (has (default "" .key) (list "" $taint)) (has (default "" .effect) (list "" "NoExecute")) -}}
{{- $isTolerated = true -}}
{{- end -}}
{{- end -}}
{{- if not $isTolerated -}}
{{- $short := dict "key" $taint "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" 30 -}}
{{- $tolerations = append $tolerations $short -}}
{{- end -}}
{{- end -}}
{{- toYaml $tolerations -}}
{{- end }}

{{/* The reference of the image in .repository, with the registry and the tag of the values. A digest replaces the tag. */}}
{{- define "proviso.image" -}}
{{- $registry := .context.Values.image.registry -}}
{{- if $registry }}{{ trimSuffix "/" $registry }}/{{ end }}{{ .repository }}
{{- if not (contains "@" .repository) }}:{{ .context.Values.image.tag | default .context.Chart.AppVersion }}{{ end }}
{{- end }}
