{{/* The model: its name, its folder in every pod, and the container that fetches it. */}}

{{- define "pdserve.modelIsFolder" -}}
{{- if hasPrefix "/" .Values.model.source }}true{{ end -}}
{{- end }}

{{- define "pdserve.modelName" -}}
{{- if .Values.model.name -}}
{{- .Values.model.name -}}
{{- else if eq .Values.model.source "demo" -}}
SmolLM2-135M-Instruct
{{- else if include "pdserve.modelIsFolder" . -}}
{{- base .Values.model.source -}}
{{- else -}}
{{- .Values.model.source -}}
{{- end -}}
{{- end }}

{{/* The head names the folder to the engines, so it is the same in every pod. */}}
{{- define "pdserve.modelDir" -}}
{{- if include "pdserve.modelIsFolder" . -}}
{{- .Values.model.source -}}
{{- else -}}
{{- $revision := ternary "" (printf "@%s" (.Values.model.revision | replace "/" "--")) (empty .Values.model.revision) -}}
/models/{{ .Values.model.source | replace "/" "--" }}{{ $revision }}
{{- end -}}
{{- end }}

{{- define "pdserve.cacheVolume" -}}
{{- with .Values.model.cache -}}
name: models
{{- if eq .type "emptyDir" }}
emptyDir:
  {{- if .sizeLimit }}
  sizeLimit: {{ .sizeLimit }}
  {{- else }} {}
  {{- end }}
{{- else if eq .type "hostPath" }}
hostPath:
  path: {{ required "model.cache.hostPath is needed for model.cache.type hostPath" .hostPath }}
  type: DirectoryOrCreate
{{- else if eq .type "existingClaim" }}
persistentVolumeClaim:
  claimName: {{ required "model.cache.existingClaim is needed for model.cache.type existingClaim" .existingClaim }}
{{- else }}
persistentVolumeClaim:
  claimName: {{ include "pdserve.fullname" $ }}-models
{{- end }}
{{- end }}
{{- end }}

{{/* Nothing for a folder that is there already. */}}
{{- define "pdserve.fetchContainer" -}}
{{- if not (include "pdserve.modelIsFolder" .) -}}
- name: fetch-model
  image: {{ include "pdserve.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command:
    - pdserve
    - fetch
    - {{ .Values.model.source | quote }}
    - {{ include "pdserve.modelDir" . | quote }}
    {{- with .Values.model.revision }}
    - {{ include "pdserve.flag" (list "--revision" .) }}
    {{- end }}
  env:
    {{- include "pdserve.commonEnv" . | nindent 4 }}
    {{- with .Values.model.hfToken }}
    {{- if .existingSecret }}
    - name: HF_TOKEN
      valueFrom:
        secretKeyRef:
          name: {{ .existingSecret }}
          key: {{ .key }}
    {{- end }}
    {{- end }}
  securityContext:
    {{- toYaml .Values.containerSecurityContext | nindent 4 }}
  resources:
    {{- toYaml .Values.model.fetchResources | nindent 4 }}
  volumeMounts:
    - {name: models, mountPath: /models}
    - {name: tmp, mountPath: /tmp}
{{- end }}
{{- end }}
