{{- define "inflight.gatewaySubject" -}}
- kind: ServiceAccount
  name: {{ include "inflight.gatewayServiceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end -}}

{{/*
What the gateway reads where the InferenceServices are, and its binding. It writes nothing.
Takes root (the chart's own dot), kind (Role or ClusterRole) and namespace (empty for a ClusterRole).
*/}}
{{- define "inflight.gatewayRole" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}
metadata:
  name: {{ include "inflight.gatewayName" .root }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "inflight.gatewayLabels" .root | nindent 4 }}
rules:
  - apiGroups: [inflight.dev]
    resources: [inferenceservices]
    verbs: [list, watch]
  - apiGroups: [discovery.k8s.io]
    resources: [endpointslices]
    verbs: [list, watch]
  {{- with .root.Values.gateway.apiKeySecrets }}
  # The picker watches each Secret that a service names in spec.gateway.auth.apiKeysSecret by itself: a list of one name,
  # which the rule can be bound to. Secrets of other names stay out of reach of a program that reads clients' requests.
  - apiGroups: [""]
    resources: [secrets]
    {{- if not (has "*" .) }}
    resourceNames: {{ toJson . }}
    {{- end }}
    verbs: [list, watch]
  {{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}Binding
metadata:
  name: {{ include "inflight.gatewayName" .root }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "inflight.gatewayLabels" .root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ include "inflight.gatewayName" .root }}
subjects:
  {{- include "inflight.gatewaySubject" .root | nindent 2 }}
{{- end -}}
