{{/* Parts of network policies. */}}

{{/* (dict "root" "roles" LIST) */}}
{{- define "pdserve.rolesSelector" -}}
matchLabels:
  app.kubernetes.io/name: {{ include "pdserve.name" .root }}
  app.kubernetes.io/instance: {{ .root.Release.Name }}
matchExpressions:
  - {key: app.kubernetes.io/component, operator: In, values: [{{ join ", " .roles }}]}
{{- end }}

{{/* Pods of this release, in its own namespace. (dict "root" "roles" LIST) */}}
{{- define "pdserve.peers" -}}
podSelector:
  {{- include "pdserve.rolesSelector" . | nindent 2 }}
{{- end }}

{{/* Where mailboxes bind; the transports bind elsewhere. */}}
{{- define "pdserve.mailboxPorts" -}}
- {port: 20000, endPort: 32767, protocol: TCP}
{{- end }}

{{- define "pdserve.rayPolicyPorts" -}}
- {port: 6380, endPort: 6383, protocol: TCP}
- {port: 10002, endPort: 10101, protocol: TCP}
- {port: 52365, protocol: TCP}
{{- end }}
