-- Health of an InferenceService for Argo CD, by its conditions of kstatus (Reconciling, Stalled) and Ready.
local hs = { status = "Progressing", message = "waiting for the operator" }

local status = obj.status
if status == nil or status.conditions == nil then
  return hs
end
if status.observedGeneration ~= obj.metadata.generation then
  return hs
end

local held = {}
for _, condition in ipairs(status.conditions) do
  held[condition.type] = condition
end

local function holds(kind)
  return held[kind] ~= nil and held[kind].status == "True"
end

if holds("Stalled") then
  hs.status = "Degraded"
  hs.message = held["Stalled"].message
elseif holds("Reconciling") then
  hs.message = held["Reconciling"].message
elseif holds("Ready") then
  hs.status = "Healthy"
  hs.message = held["Ready"].message
elseif held["Ready"] ~= nil then
  if held["Ready"].reason == "ScaledToZero" then
    hs.status = "Suspended"
  end
  hs.message = held["Ready"].message
end
return hs
