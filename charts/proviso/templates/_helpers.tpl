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

{{/* The reference of the image in .repository, with the registry and the tag of the values. */}}
{{- define "proviso.image" -}}
{{- $registry := .context.Values.image.registry -}}
{{- if $registry }}{{ trimSuffix "/" $registry }}/{{ end }}{{ .repository }}:{{ .context.Values.image.tag | default .context.Chart.AppVersion }}
{{- end }}
