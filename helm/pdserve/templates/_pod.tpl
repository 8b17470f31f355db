{{/* What pods of all roles have in common. */}}

{{- define "pdserve.commonEnv" -}}
- {name: HOME, value: /tmp}
- {name: PDSERVE_CACHE, value: /models/pdserve}
- {name: HF_HOME, value: /models/huggingface}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end }}

{{/* Text that the kubelet leaves as it is: it would replace $(NAME) in commands and environments. */}}
{{- define "pdserve.literal" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) -}}
{{- int64 . -}}
{{- else -}}
{{- . | toString | replace "$(" "$$(" -}}
{{- end -}}
{{- end }}

{{/* One item of `args`. (list "--name" value) */}}
{{- define "pdserve.flag" -}}
{{- printf "%s=%s" (index . 0) (include "pdserve.literal" (index . 1)) | toJson -}}
{{- end }}

{{/* Everything of a pod's spec before its containers. (dict "root" "role" "values" "graceSeconds") */}}
{{- define "pdserve.podHead" -}}
serviceAccountName: {{ include "pdserve.serviceAccountName" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .graceSeconds }}
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range .values.topologySpreadConstraints }}
  {{- $own := dict "labelSelector" (dict "matchLabels" (include "pdserve.selector" $ | fromYaml)) }}
  - {{- toYaml (merge (deepCopy .) $own) | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* (dict "root" "values" "files" LIST-of-secret-files "shmSize" SIZE-or-empty) */}}
{{- define "pdserve.volumes" -}}
- name: tmp
  emptyDir: {}
- {{- include "pdserve.cacheVolume" .root | nindent 2 }}
{{- if .shmSize }}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ .shmSize }}}
{{- end }}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- range .files }}
      {{- $of := index $.root.Values.auth . }}
      - secret:
          name: {{ default (printf "%s-auth" (include "pdserve.fullname" $.root)) $of.existingSecret }}
          items:
            - key: {{ $of.key }}
              path: {{ kebabcase . }}
      {{- end }}
{{- with .values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* (dict "values" "shmSize"); the model is read-only for all but the container that fetches it */}}
{{- define "pdserve.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: models, mountPath: /models, readOnly: true}
- {name: secrets, mountPath: /etc/pdserve/secrets, readOnly: true}
{{- if .shmSize }}
- {name: shm, mountPath: /dev/shm}
{{- end }}
{{- with .values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}
