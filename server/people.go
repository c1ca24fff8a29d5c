package server

import (
	"slices"

	"github.com/nats-io/jwt/v2"

	"noxmesh/events"
)

// permitted says which roles give which command. The broker enforces it: each
// role's template has the subjects of its commands, written out, and no other.
// An operator gives every command.
var permitted = map[string][]string{
	cmdFleet:            {RoleOperator, RoleAuditor, RoleViewer},
	cmdNodeInvite:       {RoleOperator},
	cmdNodeRevoke:       {RoleOperator},
	cmdNodeDeclare:      {RoleOperator},
	cmdNodeDecommission: {RoleOperator},
	cmdReleasePart:      {RoleOperator},
	cmdReleaseAdd:       {RoleOperator},
	cmdReleaseList:      {RoleOperator, RoleAuditor, RoleViewer},
	cmdReleaseHold:      {RoleOperator},
	cmdReleaseLift:      {RoleOperator},
	cmdRolloutPlan:      {RoleOperator},
	cmdRolloutStart:     {RoleOperator},
	cmdRolloutStatus:    {RoleOperator, RoleAuditor, RoleViewer},
	cmdRolloutList:      {RoleOperator, RoleAuditor, RoleViewer},
	cmdRolloutPause:     {RoleOperator},
	cmdRolloutResume:    {RoleOperator},
	cmdRolloutAbort:     {RoleOperator},
	cmdRolloutRevert:    {RoleOperator},
	cmdRolloutBacktest:  {RoleOperator, RoleAuditor},
	cmdUserAdd:          {RoleOperator},
	cmdUserList:         {RoleOperator},
	cmdUserRevoke:       {RoleOperator},
	cmdLogRead:          {RoleOperator, RoleAuditor},
	cmdStreamRead:       {RoleOperator, RoleAuditor},
	cmdViewWatch:        {RoleOperator, RoleAuditor, RoleViewer},
	cmdLogCheckpoint:    {RoleOperator, RoleAuditor},
	cmdLogCheckpoints:   {RoleOperator, RoleAuditor},
	cmdLogHashes:        {RoleOperator, RoleAuditor},
	cmdLogProve:         {RoleOperator, RoleAuditor},
	cmdKeyList:          {RoleOperator},
	cmdKeyRotate:        {RoleOperator},
}

// commandsOf gives the commands of a role, in order.
func commandsOf(role string) []string {
	var out []string
	for name, roles := range permitted {
		if slices.Contains(roles, role) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// peopleAccount is the account of operators, auditors and viewers. They ask the
// mesh and hear its answers; there is no stream in it, and no way to one.
func peopleAccount(pub, mesh string, roles map[string]string) *jwt.AccountClaims {
	a := jwt.NewAccountClaims(pub)
	a.Name = "people"
	s := jwt.Subject(events.APISubject("*", ">"))
	a.Imports.Add(&jwt.Import{Name: string(s), Account: mesh, Subject: s, Type: jwt.Service})
	for role, key := range roles {
		a.SigningKeys.AddScopedSigner(personRole(role, key))
	}
	return a
}

// personRole is what a person or a tool may do: give the commands of the role
// under the own name.
func personRole(role, key string) *jwt.UserScope {
	scope := jwt.NewUserScope()
	scope.Key = key
	scope.Role = role
	t := &scope.Template
	for _, command := range commandsOf(role) {
		t.Pub.Allow.Add(events.APISubject(name, command))
	}
	t.Sub.Allow.Add(events.InboxPrefix("user", name) + ".>")
	t.NatsLimits.Subs = 64
	t.NatsLimits.Payload = maxRequest + headerRoom
	t.AllowedConnectionTypes.Add(jwt.ConnectionTypeStandard, jwt.ConnectionTypeInProcess)
	return scope
}
