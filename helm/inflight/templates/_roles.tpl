{{- define "inflight.operatorSubject" -}}
- kind: ServiceAccount
  name: {{ include "inflight.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end -}}

{{/*
What the operator reads and writes where the InferenceServices are, and its binding.
Takes root (the chart's own dot), kind (Role or ClusterRole) and namespace (empty for a ClusterRole).
*/}}
{{- define "inflight.operatorRole" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}
metadata:
  name: {{ include "inflight.operatorName" .root }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "inflight.labels" .root | nindent 4 }}
rules:
  - apiGroups: [inflight.dev]
    resources: [inferenceservices]
    # Written: those whose engines compute prompts for another one (spec.disaggregation), as children of it; the
    # admission policy allows no others.
    verbs: [get, list, watch, create, patch, delete]
  - apiGroups: [inflight.dev]
    resources: [inferenceservices/status]
    verbs: [patch]
  # Children block the deletion of their owner; clusters that enforce it ask for this (OwnerReferencesPermissionEnforcement).
  - apiGroups: [inflight.dev]
    resources: [inferenceservices/finalizers]
    verbs: [update]
  # The children of a service. Server-side apply needs both create and patch.
  - apiGroups: [""]
    resources: [configmaps, services]
    verbs: [get, list, watch, create, patch, delete]
  # The Secret with a service's admin token is written and never read: the operator derives the token from its key.
  - apiGroups: [""]
    resources: [secrets]
    verbs: [create, patch]
  - apiGroups: [apps]
    resources: [deployments]
    verbs: [get, list, watch, create, patch, delete]
  # Jobs that fetch a model before engines need it (spec.model.prefetch), and the claim that they fill.
  - apiGroups: [batch]
    resources: [jobs]
    verbs: [get, list, watch, create, patch, delete]
  - apiGroups: [""]
    resources: [persistentvolumeclaims]
    verbs: [get]
  {{- if eq .kind "ClusterRole" }}
  # Nodes that spec.model.prefetch selects. A Role cannot give this.
  - apiGroups: [""]
    resources: [nodes]
    verbs: [list]
  {{- end }}
  - apiGroups: [policy]
    resources: [poddisruptionbudgets]
    verbs: [get, list, watch, create, patch, delete]
  - apiGroups: [networking.k8s.io]
    resources: [networkpolicies]
    verbs: [get, list, watch, create, patch, delete]
  - apiGroups: [monitoring.coreos.com]
    resources: [podmonitors]
    verbs: [get, list, watch, create, patch, delete]
  {{- if and .root.Values.gateway.enabled .root.Values.gateway.extProcPort }}
  - apiGroups: [inference.networking.k8s.io]
    resources: [inferencepools]
    verbs: [get, list, watch, create, patch, delete]
  {{- end }}
  # Read: a service is Ready when its endpoints list a pod. Written: the gateway's pods as endpoints of the Services of
  # services behind it; the admission policy allows no others. Without a gateway, those that it left are deleted.
  - apiGroups: [discovery.k8s.io]
    resources: [endpointslices]
    verbs: [get, list, watch, create, patch, delete]
  # Pods are observed, and get two annotations: the cost that says which one a scale-down takes first, and
  # inflight.dev/peers, for which the kubelet brings the names of peers up to date in a pod that loads its model.
  - apiGroups: [""]
    resources: [pods]
    verbs: [get, list, watch, patch]
  - apiGroups: [events.k8s.io]
    resources: [events]
    verbs: [create]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}Binding
metadata:
  name: {{ include "inflight.operatorName" .root }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "inflight.labels" .root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ include "inflight.operatorName" .root }}
subjects:
  {{- include "inflight.operatorSubject" .root | nindent 2 }}
{{- end -}}
