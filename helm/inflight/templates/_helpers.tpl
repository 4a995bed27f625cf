{{- define "inflight.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "inflight.operatorName" -}}
{{- include "inflight.fullname" . }}-operator
{{- end -}}

{{/* The Secret with the operator's key, in its own namespace. */}}
{{- define "inflight.keySecret" -}}
{{- include "inflight.operatorName" . }}-key
{{- end -}}

{{- define "inflight.gatewayName" -}}
{{- include "inflight.fullname" . }}-gateway
{{- end -}}

{{/* The Secret with the gateway's key: the operator makes it beside the gateway's Service, with this name. */}}
{{- define "inflight.gatewayKeySecret" -}}
{{- include "inflight.gatewayName" . }}-key
{{- end -}}

{{/* Its name up to release 0.2, the same for all releases of a namespace. */}}
{{- define "inflight.commonGatewayKeySecret" -}}
inflight-gateway-key
{{- end -}}

{{- define "inflight.gatewayServiceAccountName" -}}
{{- if .Values.gateway.serviceAccount.create -}}
{{- .Values.gateway.serviceAccount.name | default (include "inflight.gatewayName" .) -}}
{{- else -}}
{{- .Values.gateway.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "inflight.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "inflight.operatorName" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* An image reference. Takes image (with repository, tag and digest) and root (the chart's own dot). */}}
{{- define "inflight.image" -}}
{{- with .image -}}
{{- .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.root.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{- define "inflight.operatorImage" -}}
{{- include "inflight.image" (dict "image" .Values.image "root" .) -}}
{{- end -}}

{{- define "inflight.engineImage" -}}
{{- include "inflight.image" (dict "image" .Values.engine.image "root" .) -}}
{{- end -}}

{{/* The image of vLLM; its tag has no default, as it is no image of this project. */}}
{{- define "inflight.vllmImage" -}}
{{- with .Values.vllm.image -}}
{{- if not (or .tag .digest) }}{{ fail "vllm.image needs a tag or a digest" }}{{ end -}}
{{- include "inflight.image" (dict "image" . "root" $) -}}
{{- end -}}
{{- end -}}

{{/* The image of Envoy; its tag has no default, as it is no image of this project. */}}
{{- define "inflight.envoyImage" -}}
{{- with .Values.gateway.envoy.image -}}
{{- if not (or .tag .digest) }}{{ fail "gateway.envoy.image needs a tag or a digest" }}{{ end -}}
{{- include "inflight.image" (dict "image" . "root" $) -}}
{{- end -}}
{{- end -}}

{{- define "inflight.gatewayLogArguments" -}}
- --log-format={{ .Values.logs.format }}
- --log-level={{ .Values.logs.level }}
{{- end -}}

{{- define "inflight.priorityClassName" -}}
{{- .Values.priorityClassName | default (ternary (include "inflight.operatorName" .) "" .Values.priorityClass.create) -}}
{{- end -}}

{{/* Labels that select the operator's pods; a Deployment's selector is immutable, so they never change. */}}
{{- define "inflight.selectorLabels" -}}
app.kubernetes.io/name: inflight-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "inflight.testLabels" -}}
app.kubernetes.io/name: inflight-operator-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "inflight.labels" -}}
{{ include "inflight.selectorLabels" . }}
{{ include "inflight.commonLabels" . }}
{{- end -}}

{{/* As selectorLabels, of the gateway's pods. */}}
{{- define "inflight.gatewaySelectorLabels" -}}
app.kubernetes.io/name: inflight-gateway
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "inflight.gatewayLabels" -}}
{{ include "inflight.gatewaySelectorLabels" . }}
{{ include "inflight.commonLabels" . }}
{{- end -}}

{{- define "inflight.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: inflight
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/*
Checks of checkov that the chart's pods do not pass, each with the reason. Further ones have numbers from 5.
*/}}
{{- define "inflight.checkovSkips" -}}
checkov.io/skip1: CKV_K8S_11=A CPU limit throttles in bursts, also while the node is idle; under contention the request bounds the share.
checkov.io/skip2: CKV_K8S_38=The pod calls the API server; its account has only the rights in the chart.
{{- if not (contains "@" (include "inflight.operatorImage" .)) }}
checkov.io/skip3: CKV_K8S_43=The digest is that of the image in your registry; set image.digest.
checkov.io/skip4: CKV_K8S_15=Releases have a tag of their own, so a pulled image is the right one, and pods start while the registry is down.
{{- end }}
{{- end -}}

{{/* As checkovSkips, of the gateway's Deployment. */}}
{{- define "inflight.gatewayCheckovSkips" -}}
checkov.io/skip1: CKV_K8S_11=A CPU limit throttles in bursts, which delays all streams; under contention the request bounds the share.
{{- if not (and (contains "@" (include "inflight.operatorImage" .)) (contains "@" (include "inflight.envoyImage" .))) }}
checkov.io/skip3: CKV_K8S_43=The digests are those of the images in your registry; set image.digest and gateway.envoy.image.digest.
checkov.io/skip4: CKV_K8S_15=Releases have a tag of their own, so a pulled image is the right one, and pods start while the registry is down.
{{- end }}
{{- end -}}

{{/* What Pod Security "restricted" asks of a pod, and of a container. */}}
{{- define "inflight.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "inflight.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}
