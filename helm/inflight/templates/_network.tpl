{{/* Egress rules for DNS and the API server. */}}
{{- define "inflight.egressToCluster" -}}
# DNS, wherever it runs: a cache on the node has an address outside the cluster's network. OpenShift's pods of DNS
# listen on 5353.
- ports:
    {{- range list 53 5353 }}
    - {port: {{ . }}, protocol: UDP}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
- ports:
    {{- range .Values.networkPolicy.egress.apiServerPorts }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  {{- with .Values.networkPolicy.egress.apiServerPeers }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* The engines' pods, as NetworkPolicyPeers. */}}
{{- define "inflight.enginePeers" -}}
- namespaceSelector:
    matchExpressions:
      {{- if .Values.watchNamespaces }}
      - {key: kubernetes.io/metadata.name, operator: In, values: {{ toJson .Values.watchNamespaces }}}
      {{- else }}
      - {key: kubernetes.io/metadata.name, operator: Exists}
      {{- end }}
  podSelector:
    matchLabels:
      app.kubernetes.io/name: inflight-engine
{{- end -}}
