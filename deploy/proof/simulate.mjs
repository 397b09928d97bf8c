// Reads {documents, questions} as JSON from stdin and answers each question with true where IAM would allow it.
// A question names its documents by their numbers, beside action, resource and keys (of conditions, with their values).
import { runSimulation } from '@cloud-copilot/iam-simulate'
import { readFileSync } from 'node:fs'

const { account, documents, questions } = JSON.parse(readFileSync(0, 'utf8'))
const answers = []
for (const { of, action, resource, keys } of questions) {
  const request = {
    principal: `arn:aws:iam::${account}:role/asked-for`,
    action,
    resource: { resource, accountId: account },
    contextVariables: keys
  }
  const identityPolicies = of.map((number) => ({ name: String(number), policy: documents[number] }))
  const simulation = { request, identityPolicies, serviceControlPolicies: [], resourceControlPolicies: [] }
  const answer = await runSimulation(simulation, {})
  if (answer.resultType === 'error') {
    throw new Error(`${action} on ${resource}: ${JSON.stringify(answer.errors)}`)
  }
  answers.push(answer.overallResult === 'Allowed')
}
process.stdout.write(JSON.stringify(answers))
