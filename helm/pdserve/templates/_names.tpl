{{/* Names and labels. */}}

{{- define "pdserve.name" -}}
{{- default .Chart.Name .Values.nameOverride -}}
{{- end }}

{{/*
The prefix of every name, at most 37 characters: with `-balancer` and the suffixes that controllers
add, names and the labels made of them stay below 63. A cut name ends with a digest of the whole one,
so that two long releases never share it.
*/}}
{{- define "pdserve.fullname" -}}
{{- $name := include "pdserve.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- if .Values.fullnameOverride }}{{ $full = .Values.fullnameOverride }}{{ end -}}
{{- $full = $full | replace "." "-" -}}
{{- if gt (len $full) 37 -}}
{{- printf "%s-%s" ($full | trunc 28 | trimSuffix "-") ($full | sha256sum | trunc 8) -}}
{{- else -}}
{{- $full -}}
{{- end -}}
{{- end }}

{{- define "pdserve.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "pdserve.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "pdserve.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository (default $.Chart.AppVersion .tag) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* What selects pods of one role. Selectors are immutable: these never change. (dict "root" "role") */}}
{{- define "pdserve.selector" -}}
app.kubernetes.io/name: {{ include "pdserve.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{/* Labels of every object. (dict "root" "role") */}}
{{- define "pdserve.labels" -}}
{{ include "pdserve.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: pdserve
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* A pod's own labels. (dict "root" "role" "values") */}}
{{- define "pdserve.podLabels" -}}
{{ include "pdserve.selector" . }}
app.kubernetes.io/part-of: pdserve
{{- with .values.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}
